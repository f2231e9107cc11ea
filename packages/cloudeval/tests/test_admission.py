import pytest

from cloudeval.admission import admit_text
from cloudeval.store import Store

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: b}]}\n"


def reasons(text, store=None):
    return [str(fault) for fault in admit_text(text, store or Store())]


def test_a_misplaced_key_is_named_with_its_path():
    found = reasons(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, restartPolicy: Never}\nspec: {containers: [{name: c, image: b}]}"
    )
    assert found == ["metadata.restartPolicy: unknown field"]


def test_a_misspelt_spec_gives_both_reasons():
    found = reasons("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspecs: {replicas: 1}")
    assert any("unknown field" in reason for reason in found)
    assert any("spec" in reason and "required" in reason for reason in found)


def test_several_documents_are_named_in_reasons():
    assert reasons(POD + "---\n" + POD.replace("name: a}", "name: B}"))[0].startswith("Pod B: metadata.name")


def test_namespaces_must_exist_and_may_come_first():
    inside = POD.replace("name: a}", "name: a, namespace: team}")
    assert reasons(inside) == ['metadata.namespace: the namespace "team" does not exist']
    assert reasons("apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n---\n" + inside) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (POD, POD.replace("name: c", "name: d")),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nimmutable: true\ndata: {a: b}",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nimmutable: true\ndata: {a: c}",
        ),
    ],
)
def test_fixed_fields_must_not_change(first, second):
    store = Store()
    assert not admit_text(first, store)
    assert "must not change" in reasons(second, store)[0]


def test_lists_are_taken_apart_and_nulls_are_absent():
    store = Store()
    assert not admit_text(
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: null}}",
        store,
    )
    assert store.get("ConfigMap", "a")


def test_kinds_of_another_version_are_explained():
    assert "apps/v1" in reasons("apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: a}")[0]
