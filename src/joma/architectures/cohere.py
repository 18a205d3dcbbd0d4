"""Cohere: Llama's names, but positions turn neighbouring coordinates."""

from dataclasses import replace

from joma.architectures.llama import ARCHITECTURE as LLAMA

ARCHITECTURE = replace(LLAMA, model_types=("cohere",), rotary="neighbours")
