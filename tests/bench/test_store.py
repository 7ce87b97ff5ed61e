"""The store: what was written whole stays, whatever happens to the writer."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap

import pytest

import backplay as bp
from backplay.bench import journal, store
from backplay.bench.journal import StoreError
from backplay.bench.lock import HeldError
from backplay.bench.rows import Job, Outcome, Session, TableCell, canonical
from backplay.bench.store import Store, read

SESSION = Session(0, "try", "1.2.3", "abc", "c0ffee", 7, "a processor", "2026-01-01T00:00:00")
CELL = TableCell("zoo:vgg", "zoo", "test", "rg", canonical({"tau": 0.5}))


def outcome(index, value=0.5, error=None, cell=CELL):
    job = Job(cell, index, ("al", "pg"))
    if error:
        return Outcome(job, f"sample-{index}", error=error)
    return Outcome(job, f"sample-{index}", {"al": value, "pg": None}, {"pg": "empty mask"})


def written(folder, indices, resume=False, config="a: 1\n"):
    with Store(folder, SESSION, config, resume) as kept:
        for index in indices:
            kept.append(outcome(index, index / 10))
    return kept


def test_rows_carry_everything(tmp_path):
    written(tmp_path / "run", [0, 1])
    rows = read(tmp_path / "run").to_pylist()
    assert len(rows) == 4  # two samples, two metrics
    first = rows[0]
    assert first["value"] == 0.0 and first["metric"] == "al" and first["sample"] == "sample-0"
    assert json.loads(first["params"]) == {"tau": 0.5}
    assert (first["version"], first["commit"], first["config"], first["seed"]) == ("1.2.3", "abc", "c0ffee", 7)
    assert first["hardware"] == "a processor" and first["session"] == 1
    assert rows[1]["value"] is None and rows[1]["note"] == "empty mask"


def test_resume_knows_what_is_done(tmp_path):
    written(tmp_path / "run", [0, 1])
    kept = written(tmp_path / "run", [2], resume=True)
    assert {index for _, index in kept.done} == {0, 1, 2}
    assert [row["session"] for row in read(tmp_path / "run").to_pylist()] == [1] * 4 + [2] * 2


def test_parameters_that_are_equal_are_one_cell():
    assert canonical({"tau": 1.0, "risk": -1}) == canonical({"risk": -1.0, "tau": 1})


def test_a_run_is_not_overwritten(tmp_path):
    written(tmp_path / "run", [0])
    with pytest.raises(StoreError, match="--resume"):
        written(tmp_path / "run", [1])
    with pytest.raises(StoreError, match="another config"):
        written(tmp_path / "run", [1], resume=True, config="a: 2\n")
    assert len(read(tmp_path / "run")) == 2


def test_sealing_keeps_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SEAL", 2000)
    written(tmp_path / "run", range(30))
    assert len(list((tmp_path / "run").glob("rows-*.parquet"))) > 3
    assert not list((tmp_path / "run").glob("journal-*"))
    rows = read(tmp_path / "run").to_pylist()
    assert [row["index"] for row in rows if row["metric"] == "al"] == list(range(30))


def test_an_open_run_can_be_read(tmp_path):
    with Store(tmp_path, SESSION, "a: 1\n") as kept:
        kept.append(outcome(0))
        assert len(read(tmp_path)) == 2


def test_of_several_outcomes_the_last_counts(tmp_path):
    with Store(tmp_path, SESSION, "a: 1\n") as kept:
        kept.append(outcome(0, error="boom"))
        kept.append(outcome(1, error="boom"))
        kept.append(outcome(1, error="boom again"))
        assert not kept.done
        kept.append(outcome(0, 0.25))
    rows = read(tmp_path).to_pylist()
    assert [(r["index"], r["metric"], r["note"]) for r in rows] == [
        (1, "error", "boom again"),
        (0, "al", None),
        (0, "pg", "empty mask"),
    ]


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_torn_record_is_passed_over(tmp_path, cut):
    kept = Store(tmp_path, SESSION, "a: 1\n")
    kept.append(outcome(0))
    kept.append(outcome(1))
    kept.lock.release()  # the process is gone
    path = kept.journal.path
    path.write_bytes(path.read_bytes()[:-cut])
    assert {row["index"] for row in read(tmp_path).to_pylist()} == {0}
    assert {index for _, index in written(tmp_path, [2], resume=True).done} == {0, 2}
    assert not list(tmp_path.glob("*.damaged"))


def test_every_cut_of_a_journal_is_a_whole_number_of_records(tmp_path):
    path = tmp_path / "journal-000001.log"
    lines = [journal.encode({"kind": "sample", "n": n}) for n in range(4)]
    whole = b"".join(lines)
    ends = [sum(map(len, lines[:n])) for n in range(5)]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        found = [record["n"] for record in journal.read(path)]
        assert found == list(range(sum(end <= size for end in ends) - 1))


def test_a_damaged_journal_is_told_and_mended(tmp_path):
    kept = Store(tmp_path, SESSION, "a: 1\n")
    for index in range(3):
        kept.append(outcome(index))
    kept.lock.release()
    path = kept.journal.path
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"0.5", b"0.7")
    path.write_bytes(b"".join(lines))
    with pytest.raises(StoreError, match=r"line 3.*--resume"):
        read(tmp_path)
    with pytest.warns(UserWarning, match="damaged in 1 places"):
        again = written(tmp_path, [], resume=True)
    assert {index for _, index in again.done} == {0, 2}
    assert len(list(tmp_path.glob("*.damaged"))) == 1


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_parquet_file_is_told_and_its_samples_computed_again(tmp_path, damage):
    written(tmp_path, range(5))
    written(tmp_path, [7], resume=True)
    path = tmp_path / "rows-000001.parquet"
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    else:
        content[60] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"rows-000001.parquet is damaged.*--resume"):
        read(tmp_path)
    with pytest.warns(UserWarning, match="damaged"):
        assert {index for _, index in written(tmp_path, [], resume=True).done} == {7}
    assert len(read(tmp_path)) == 2


def test_death_between_sealing_and_removing_the_journal(tmp_path):
    kept = Store(tmp_path, SESSION, "a: 1\n")
    kept.append(outcome(0))
    copy = kept.journal.path.read_bytes()
    kept.close()
    (tmp_path / "journal-000001.log").write_bytes(copy)
    (tmp_path / "rows-000009.parquet.part").write_bytes(b"half")
    assert len(read(tmp_path)) == 2  # not four
    written(tmp_path, [1], resume=True)
    assert len(read(tmp_path)) == 4 and not list(tmp_path.glob("*.part"))


@pytest.mark.slow
def test_a_second_writer_is_told_who_holds_the_folder(tmp_path):
    with Store(tmp_path, SESSION, "a: 1\n"):
        with pytest.raises(HeldError, match=rf"held by process {os.getpid()} of .* since"):
            Store(tmp_path, SESSION, "a: 1\n", resume=True)
        code = "import sys; from test_store import *; written(tmp := Path(sys.argv[1]), [0], resume=True)"
        done = subprocess.run(
            [sys.executable, "-c", f"from pathlib import Path; {code}", str(tmp_path)],
            capture_output=True, text=True, env=_env(),
        )  # fmt: skip
        assert f"process {os.getpid()}" in done.stderr and done.returncode
    written(tmp_path, [0], resume=True)  # let go


def _env():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}


def test_the_lock_goes_with_its_process(tmp_path):
    code = """
        import os, signal, sys
        from pathlib import Path
        from test_store import *
        kept = Store(Path(sys.argv[1]), SESSION, "a: 1\\n")
        for index in range(5):
            kept.append(outcome(index))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], env=_env())
    assert done.returncode == -signal.SIGKILL
    assert {row["index"] for row in read(tmp_path).to_pylist()} == set(range(5))
    assert len(written(tmp_path, [5], resume=True).done) == 6


@pytest.mark.slow
def test_a_full_disk_loses_nothing(tmp_path):
    """The limit on the size of a file stands for a disk that is full."""
    code = """
        import resource, sys
        from pathlib import Path
        from test_store import *
        with Store(Path(sys.argv[1]), SESSION, "a: 1\\n") as kept:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
            for index in range(100):
                kept.append(outcome(index))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, env=_env()
    )
    assert re.search("cannot grow: .*; free some space and start again with --resume", done.stderr)
    kept = sorted({row["index"] for row in read(tmp_path).to_pylist()})
    assert kept == list(range(len(kept))) and 5 < len(kept) < 20
    assert len(written(tmp_path, range(len(kept), 100), resume=True).done) == 100


def test_a_full_disk_while_sealing_loses_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kept = Store(tmp_path, SESSION, "a: 1\n")
    kept.append(outcome(0))
    with monkeypatch.context() as patch:
        patch.setattr(store.arrow().parquet, "write_table", full)
        with pytest.raises(StoreError, match="No space left"):
            kept.close()
    assert len(read(tmp_path)) == 2
    assert len(written(tmp_path, [1], resume=True).done) == 2


@pytest.mark.slow
def test_memory_is_flat(tmp_path, monkeypatch):
    """Ten thousand rows leave no more behind than the keys of their samples."""
    monkeypatch.setattr(store, "SEAL", 100_000)
    with Store(tmp_path, SESSION, "a: 1\n") as kept:
        for index in range(1000):
            kept.append(outcome(index))
        before = _resident()
        for index in range(1000, 6000):  # two rows each
            kept.append(outcome(index))
        grown = _resident() - before
    assert grown < 12e6
    assert len(read(tmp_path)) == 12_000


def _resident():
    import gc

    import pyarrow

    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(bp.BackplayError, match="holds no run"):
        read(tmp_path)


def test_a_folder_without_rows_is_anybodys(tmp_path):
    """A run that ended before its first row does not keep the next one out; a config written by hand stays."""
    written(tmp_path / "run", [])
    written(tmp_path / "run", [], config="a: 2\n")
    assert (tmp_path / "run" / "config.yaml").read_text() == "a: 2\n"
    written(tmp_path / "run", [0], config="a: 3\n")
    with pytest.raises(StoreError, match="holds a run already"):
        written(tmp_path / "run", [], config="a: 3\n")
    (tmp_path / "config.yaml").write_text("# mine\na: 1\n")
    for _ in range(2):
        with pytest.raises(StoreError, match="holds a run already"):
            written(tmp_path, [0])
    assert (tmp_path / "config.yaml").read_text() == "# mine\na: 1\n"
