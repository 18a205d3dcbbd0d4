"""Measuring whole suites of checkpoints: plan, run anywhere, stop anywhere, go on.

`joma.sweep.run.Sweep` is the front door; `joma.sweep.work` is what one worker does;
`joma.sweep.engines` are the places where workers live.
"""
