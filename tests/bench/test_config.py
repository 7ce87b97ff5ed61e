"""Configs: every mistake is told with its line and key, and every config of the repository can be read."""

from pathlib import Path

import pytest

from backplay import bench
from backplay.bench.reading import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
GOOD = """models: [zoo:vgg]
data: {kind: zoo, validation: 2, test: 3}
metrics: [localisation, sel]
tables:
  - kind: main
    methods:
      - gradient
      - {method: rg, grid: [{tau: [0.5, 1.0]}]}
"""


def load(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return bench.load(path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_of_the_repository(path):
    config = bench.load(path, zoo=True)
    assert config.tables and all(table.entries for table in config.tables)
    if path.stem.startswith("tab-"):
        assert config.paper == path.stem.replace("tab-", "tab:", 1)


def test_there_is_one_for_every_table():
    names = {path.stem for path in CONFIGS}
    assert {"quick", "pets"} < names
    for table in (
        *("eval-vit", "eval-vgg16", "vit-duals", "baselines-vit", "baselines-vgg16", "baselines-resnet50"),
        *("sweeps-vgg-rg", "sweeps-vit-rg", "sweeps-vit-rgeq", "sweeps-resnet-rg", "sweeps-vgg-sg", "vgg-lambda-sweep"),
        *("vit-lambda-inert", "vgg-lent-tau08", "abl-gradient-fallback", "abl-full-risk-vit", "abl-full-risk-vgg"),
        *("abl-tau-forward-vit", "abl-tau-forward-vgg", "eval-vit-voc"),
    ):
        assert f"tab-{table}" in names


def test_a_good_one(tmp_path):
    config = load(tmp_path, GOOD)
    assert [entry.method for entry in config.tables[0].entries] == ["gradient", "rg"]
    assert config.tables[0].entries[1].grid == ({"tau": 0.5}, {"tau": 1.0})
    assert config.metrics == ("al", "pg", "tk", "sel") and config.draws == 50
    assert config.wanted("test", 0) == ("al", "pg", "tk", "sel")
    assert config.wanted("validation", 0) == ("al", "pg", "tk")


def test_the_kept_config_is_the_config(tmp_path):
    config = load(tmp_path, GOOD)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "config.yaml").write_text(config.text)
    again = bench.load(tmp_path / "kept" / "config.yaml")
    assert again == config and again.hash == config.hash


def test_spelling_does_not_matter_but_content_does(tmp_path):
    same = load(
        tmp_path,
        "# a comment\n" + GOOD.replace("{kind: zoo, validation: 2, test: 3}", "{test: 3, kind: zoo, validation: 2}"),
    )
    assert same.hash == load(tmp_path, GOOD).hash
    assert load(tmp_path, GOOD.replace("test: 3", "test: 4")).hash != same.hash


@pytest.mark.parametrize(
    "old,new,line,said",
    [
        ("metrics:", "metrix:", 3, r"metrix: unknown key \(did you mean metrics"),
        ("sel]", "selectivity]", 3, "no metric named 'selectivity'"),
        ("kind: zoo", "kind: imagenet", 2, r"data.kind: 'imagenet' is unknown \(did you mean imagenet-s\?\)"),
        ("test: 3", "test: many", 2, r"data.test: expected a whole number, 1 or more, found 'many'"),
        ("test: 3", "test: 0", 2, "1 or more, found 0"),
        ("test: 3", "test: true", 2, "found True"),
        ("kind: main", "kind: mian", 5, r"tables\[0\].kind: 'mian' is unknown"),
        ("- gradient", "- gradients", 7, r"methods\[0\]: no method named 'gradients' \(did you mean"),
        ("tau: [0.5, 1.0]", "tau: [0.5, -1.0]", 8, r"grid\[0\].tau: tau=-1.0 is out of range"),
        ("tau: [0.5, 1.0]", "tao: 0.5", 8, r"grid\[0\].tao: unknown parameter 'tao' \(did you mean tau"),
        ("- gradient\n", "- rg\n", 7, "names rg twice"),
        ("models: [zoo:vgg]", "models: []", 1, "models: the list is empty"),
        ("models: [zoo:vgg]", "models: zoo:vgg", 1, "models: expected a list, found a value"),
        ("models: [zoo:vgg]", "models: [zoo:vgg, zoo:vgg]", 1, "names a network twice"),
        ("    methods:", "    columns: [maxs]\n    methods:", 6, "shows maxs, which is not among the metrics"),
        ("metrics: [localisation, sel]", "metrics: [al]\nmetrics: [al]", 4, "metrics: stands here for the second time"),
        (
            "metrics: [localisation, sel]",
            "validation_metrics: [al, pg]",
            3,
            "lacks tk, which configurations are selected by",
        ),
        ("kind: zoo,", "kind: voc, root: $NO_SUCH_VARIABLE,", 2, "'\\$NO_SUCH_VARIABLE' names a variable .* not set"),
        ("kind: zoo,", "kind: voc,", 2, "data: lacks the key 'root'"),
        ("kind: main", "kind: sweep", 6, r"methods: unknown key \(did you mean method\?\)"),
        ("    methods:", "    entries:", 6, "entries: unknown key"),
        ("tables:\n", "tables:\n  - {kind: sweep, method: rg}\n", 5, "lacks the key 'vary'"),
    ],
)
def test_mistakes_are_told_with_line_and_key(tmp_path, old, new, line, said):
    assert old in GOOD
    with pytest.raises(ConfigError, match=rf"config.yaml, line {line}: .*{said}") as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "- a list\n", "a: [1\n", "a: &x [*x]\n", "\t: x", "models: !!python/object:os.system {}\n"],
)
def test_what_is_no_config(tmp_path, text):
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load(tmp_path, text)


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"configs/quick\.yaml for one"):
        bench.load(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        bench.load(tmp_path / "binary.yaml")


def test_rest_stands_for_the_others(tmp_path):
    import backplay as bp

    config = load(tmp_path, GOOD.replace("- gradient\n", "- rest\n"))
    assert {entry.method for entry in config.tables[0].entries} == set(bp.methods())


def test_factories_are_looked_for_beside_the_config(tmp_path):
    config = load(tmp_path, GOOD.replace("zoo:vgg", "{name: mine, load: 'nets.py:small'}"))
    assert config.networks[0].name == "mine" and config.networks[0].load == f"{tmp_path / 'nets.py'}:small"


def test_limits_are_of_metrics(tmp_path):
    config = load(tmp_path, GOOD + "limits: {faithfulness: 1}\n")
    assert config.wanted("test", 0) == ("al", "pg", "tk", "sel") and config.wanted("test", 1) == ("al", "pg", "tk")
