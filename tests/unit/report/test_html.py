"""Markup is made here or not at all."""

import base64
import hashlib
import re

from browser.material import ATTACKS
from joma.report.html import Html, data, document, joined, table, tag


def test_text_is_escaped_unless_it_was_made_here():
    assert tag("p", "<b>") == "<p>&lt;b&gt;</p>"
    assert tag("p", tag("b", "x")) == "<p><b>x</b></p>"
    assert joined(["<i>", Html("<i>")]) == "&lt;i&gt;<i>"


def test_a_quote_cannot_leave_an_attribute():
    assert tag("p", title='" onclick="x') == '<p title="&quot; onclick=&quot;x"></p>'


def test_an_absent_attribute_is_left_out_and_a_true_one_has_no_value():
    assert tag("pre", hidden=True, title=None, open=False) == "<pre hidden></pre>"


def test_data_cannot_end_its_element():
    for attack in ATTACKS:
        inside = data({attack: attack}, "x").split(">", 1)[1].rsplit("</script>", 1)[0]
        assert not re.search("[<>&]", inside)


def test_tables_have_a_caption_and_headings():
    made = table("what", ("a", "b"), [("<1>", "2")])
    assert "<caption>what</caption>" in made
    assert '<th scope="row">&lt;1&gt;</th><td>2</td>' in made


def test_only_the_scripts_of_the_page_may_run():
    page = document("t", "body", ["let a = 1;\r\n"])
    policy = re.search('Content-Security-Policy" content="([^"]*)"', page)[1]
    digest = base64.b64encode(hashlib.sha256(b"let a = 1;\n").digest()).decode()
    assert f"&#x27;sha256-{digest}&#x27;" in policy
    assert "default-src &#x27;none&#x27;" in policy
    assert "<script>let a = 1;\n</script>" in page


def test_a_name_that_is_no_text_can_still_be_written():
    assert tag("p", "a\ud800b").encode() == b"<p>a?b</p>"
