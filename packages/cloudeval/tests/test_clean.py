import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudeval import problems
from cloudeval.cleaning import clean
from cloudeval.reading import values

POD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: c\n    image: b\n    args: ['Here ```', 'x']\n"
VALID = [problems.draw(problem).answer for problem in problems.load(only="pod,envoy")[:30]]


@given(st.sampled_from(VALID))
def test_a_valid_answer_stays_byte_for_byte(text):
    runner = "envoy" if "static_resources" in text else "cluster"
    assert clean(text, runner) == (text, "as it is")


@pytest.mark.parametrize(
    "wrapped",
    [
        "```yaml\n{}```",
        "``` yaml\n{}```",
        "Here you go:\n```yml\n{}``` (tested)\nHave fun",
        "~~~\n{}~~~\n",
        "<code>\n{}</code>",
        "\\begin{{code}}\n{}\\end{{code}}",
        "START SOLUTION\n{}END SOLUTION",
        "Sure!\n\n{}\n\nThis pod does it.",
        "````yaml\n{}````\n",
        "First:\n```bash\nkubectl get pods\n```\nthen\n```yaml\n{}```\n",
        "1. Do:\n   ```yaml\n{}   ```",
    ],
)
def test_wrapping_comes_off(wrapped):
    text = wrapped.format(POD)
    assert values(clean(text)[0]) == values(POD)


def test_two_fenced_documents_are_joined():
    text = f"```yaml\n{POD}```\nand\n```yaml\n{POD.replace('name: a', 'name: z')}```"
    assert [value["metadata"]["name"] for value in values(clean(text)[0])] == ["a", "z"]


@pytest.mark.parametrize("cut", [60, 75, 90])
def test_half_of_an_answer_that_was_cut_off_is_not_rescued(cut):
    whole = POD + "---\n" + POD.replace("name: a", "name: z")
    text = f"```yaml\n{whole[: len(POD) + cut]}"
    cleaned, rule = clean(text)
    assert rule == "unclosed fence"
    assert cleaned.strip() == whole[: len(POD) + cut].strip()
