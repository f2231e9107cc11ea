import pytest

from cloudeval.errors import ReadError
from cloudeval.reading import Label, read, strip_labels, values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("y", True),
        ("n", False),
        ("on", True),
        ("No", False),
        ("0400", 256),
        ("0o400", 256),
        ("0x1F", 31),
        ("08", 8),
        ("1e3", 1000),
        ("1_000", 1000),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("'on'", "on"),
        ('"0400"', "0400"),
        ("1.5", 1.5),
        ("12:30", "12:30"),
        ("!!str 5", "5"),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(text, value):
    assert values(f"a: {text}") == [{"a": value}]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        '{"a": 1, "a": 2}',
        "a: [",
        "a: " + "[" * 500,
        '{"a": 1}\n---\n{"b": 2}',
        "{a: 1}",
        "a: *b",
        "a: .inf",
        "a: !x 5",
        "- a\nb",
    ],
)
def test_what_kubectl_refuses_is_an_error(text):
    with pytest.raises(ReadError):
        read(text)


def test_a_yaml_bomb_is_an_error_and_not_a_full_memory():
    text = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
    )
    with pytest.raises(ReadError, match="aliases"):
        read(text)


def test_merge_keys_and_anchors_work():
    assert values("a: &a {x: 1, z: 2}\nb: {<<: *a, z: 3}") == [{"a": {"x": 1, "z": 2}, "b": {"x": 1, "z": 3}}]


def test_labels_stand_behind_leaves():
    text = "a: 1  # *\nb: [x, y]  # in ['y', 'z']\nc: |  # *\n  text # *\nd: 5 # v in [5, 6]\ne: '# *'\n"
    document = read(text, labels=True)[0]
    assert document.labels == {
        ("a",): Label(True),
        ("b", 1): Label(values=("y", "z")),
        ("c",): Label(True),
        ("d",): Label(values=(5, 6)),
    }
    assert "# *\n" not in strip_labels(text).replace("text # *", "").replace("'# *'", "")


def test_several_json_values_are_documents():
    assert values('{"a": 1}\n{"b": 2}') == [{"a": 1}, {"b": 2}]
