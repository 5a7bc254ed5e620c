"""plan, calibrate and profile through the command line: answers, exit statuses, and one line for what is wrong."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from anyformer.costs.hardware.devices import Device, Efficiency
from anyformer.measure import here
from anyformer.observation.passes import training_pass
from anyformer.recipe.file import read
from anyformer.training.cluster.mesh import parse
from tests.cli.running import answer, refused, run, succeeded, write_text
from tests.test_docs import keys_of, section

pytestmark = pytest.mark.usefixtures("_quick")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", "llama3-70b", "--hardware", "8xH10O"), ("no device 'H10O'", "did you mean 'H100'")),
        (("plan", "llama3-70b", "--hardware", "0xH100"), ("0 devices", "8xH100")),
        (("plan", "llama3-70b", "--hardware", "12xH100", "--mesh", "dp=4,tp=3"), ("tp = 3", "64 heads")),
        (("plan", "llama3-70b", "--hardware", "12xH100", "--mesh", "dp=5"), ("5 devices", "has 12")),
        (("plan", "llama3-70b", "--hardware", "12xH100", "--mesh", f"dp={'9' * 4400}"), ("is no axis and number",)),
        (("plan", "gpt2", "--hardware", "H100", "--seq-len", "2048"), ("1,024 learned positions",)),
        (("plan", "gpt2", "--hardware", "this"), ("run `anyformer calibrate` first",)),
        (("plan", "gpt2", "--hardware", "nowhere/mine.yaml"), ("cannot read the device",)),
        (
            ("plan", "gpt2", "--hardware", "8xH100", "--mesh", "dp=4,pp=2,vp=2", "--write", "recipe.yaml"),
            ("vp = 2, which can be planned and not run yet", "--mesh dp=4,pp=2", ",vp=1"),
        ),
        (
            (
                "plan",
                "mixtral-8x7b",
                "--hardware",
                "64xH100",
                "--mesh",
                "dp=32,tp=2,ep=8,zero=3",
                "--write",
                "recipe.yaml",
            ),
            ("ep = 8 beside tp = 2", "--mesh dp=64,zero=3"),
        ),
        (
            ("plan", "hourglass-linear-enwik8", "--hardware", "2xH100", "--mesh", "cp=2", "--write", "recipe.yaml"),
            ("--write: this cannot be trained on the mesh cp=2", "Shortened", "use --mesh dp=2"),
        ),
        (("plan", "gpt2", "--hardware", "H100", "--write", "nowhere/r.yaml"), ("there is no folder nowhere",)),
        (("plan", "gpt2", "--hardware", "H100", "--precision", ""), ("precision = '' is unknown",)),
        (("plan", "gpt2", "--hardware", "H100", "--precision", "bf17"), ("did you mean 'bf16'",)),
        (("plan", "gpt2"), ("--hardware",)),
        (("profile", "llama3-70b"), ("GB are free", "--params")),
        (("profile", "gpt2", "--params", "1M", "--batch", "0"), ("--batch", "'0' is less than 1")),
        (("profile", "gpt2", "--seq-len", "1025"), ("1,024 learned positions",)),
        (("profile", "bert-base", "--params", "1M", "--device", "cpux"), ("no device 'cpux'", "did you mean 'cpu'")),
        (("calibrate", "--dtype", "float23"), ("'float23'", "did you mean 'float32'")),
        (("calibrate", "--device", "tpu"), ("no device 'tpu'",)),
    ],
)
def test_one_line_for_what_is_wrong(arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    refused(run(*arguments), *says)


def test_a_plan_is_shown() -> None:
    shown = succeeded(run("plan", "llama3-70b", "--hardware", "256xH100", "--tokens", "15T", "--price-per-hour", "2.5"))
    for words in ("70,553,706,496", "mesh", "recomputation", "MFU", "days", "kWh", "at 2.5 an hour", "optimal tokens"):
        assert words in shown.stdout, shown.stdout
    found = answer("plan", "llama3-70b", "--hardware", "256xH100", "--hours", "24")
    assert found["tokens_reached"] == pytest.approx(86_400 * found["plan"]["tokens_per_second"])


def test_little_is_no_nothing() -> None:
    shown = succeeded(run("plan", "gpt2", "--hardware", "8xH100", "--tokens", "10M", "--price-per-hour", "2")).stdout
    figures = {name: line.split()[-1 if name == "device hours" else len(name.split())] for line in shown.splitlines()
               for name in ("device hours", "energy", "price") if line.strip().startswith(name)}  # fmt: skip
    assert len(figures) == 3
    assert all(0 < float(figure) < 1 for figure in figures.values()), figures


def test_no_has_status_1_and_says_why() -> None:
    result = run("plan", "llama3-70b", "--hardware", "8xH100")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "optimiser" in result.stdout
    assert "× H100" in result.stdout
    as_json = run("plan", "llama3-70b", "--hardware", "8xH100", "--json")
    assert as_json.exit_code == 1
    assert '"fits": false' in as_json.stdout


@pytest.mark.parametrize("hardware", ["256xH100", pytest.param("16384xH100", marks=pytest.mark.slow)])
def test_few_passes_are_observed_for_all_meshes(hardware: str) -> None:
    """What takes the time: for each way to recompute a row, and a row more."""
    for model in ("llama3.1-405b", "deepseek-v3"):
        training_pass.cache_clear()
        run("plan", model, "--hardware", hardware, "--json")
        assert 0 < training_pass.cache_info().misses <= 6


def test_a_device_of_the_users_own(tmp_path: Path) -> None:
    mine = {
        "name": "mine",
        "source": "a test",
        "peak_flops_per_second": {"bfloat16": "1e14", "float32": "5e13"},
        "memory_nbytes": 32e9,
        "nbytes_per_second": 1e12,
        "link_nbytes_per_second": 1e11,
        "devices_per_node": 4,
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine), encoding="utf-8")
    found = answer("plan", "gpt2", "--hardware", f"4x{tmp_path / 'mine.yaml'}")
    assert found["hardware"]["device"]["name"] == "mine"
    assert found["plan"]["mesh"]["dp"] * found["plan"]["mesh"]["tp"] == 4
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine | {"bandwith": 1}), encoding="utf-8")
    refused(run("plan", "gpt2", "--hardware", f"4x{tmp_path / 'mine.yaml'}"), "'bandwith' is no field")


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine, as if it had been calibrated."""
    machine = Device("this", {"float32": 1e11}, 2 * 10**9, 1e10, "a test", efficiency=Efficiency(1, 1, 1, 1))
    monkeypatch.setattr(here, "kept", lambda *_: machine)


@pytest.mark.usefixtures("_here")
def test_a_recipe_is_written_that_train_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text.txt")
    sizes = ("--params", "60k", "--vocab", "300", "--seq-len", "32", "--batch-tokens", "256", "--tokens", "1024")
    found = answer("plan", "llama2-7b", "--hardware", "this", *sizes, "--write", "recipe.yaml")
    recipe = read(tmp_path / "recipe.yaml")
    assert (recipe.tokens, recipe.batch_tokens, recipe.seq_len, recipe.precision) == (1024, 256, 32, "float32")
    assert found["recipe"] == "recipe.yaml"
    words = shlex.split(found["train"].replace("TEXT", "text.txt"))
    assert words[:2] == ["anyformer", "train"]
    micro = int(words[words.index("--micro-tokens") + 1])
    assert micro == 32 * found["plan"]["micro_batch"]
    trained = answer(*words[1:], "--device", "cpu")
    assert trained["steps"] == 4


@pytest.mark.parametrize(
    ("hardware", "mesh", "begins", "wanted"),
    [
        ("8xH100", "dp=8,zero=3", ["anyformer", "train"], "fsdp=8"),
        ("8xH100", "dp=8,zero=0", ["anyformer", "train"], "dp=8"),
        ("8xH100", "dp=4,tp=2,zero=0", ["anyformer", "train"], "dp=4,tp=2"),
        ("16xH100", "dp=16,zero=2", ["torchrun", "--nnodes", "2", "--nproc-per-node", "8"], "fsdp=16,zero=2"),
        ("8xH100", "dp=8,ep=4,zero=3", ["anyformer", "train"], "fsdp=8,ep=4"),
        ("8xH100", "dp=8,ep=8,zero=0", ["anyformer", "train"], "fsdp=8,ep=8,zero=2"),
        ("8xH100", "dp=4,cp=2,zero=3", ["anyformer", "train"], "fsdp=4,cp=2"),
        ("8xH100", "cp=8,zero=2", ["anyformer", "train"], "cp=8,zero=2"),
        ("8xH100", "dp=2,tp=2,pp=2,vp=1,zero=0", ["anyformer", "train"], "dp=2,tp=2,pp=2"),
        (
            "16xH100",
            "dp=4,pp=4,vp=1,zero=2",
            ["torchrun", "--nnodes", "2", "--nproc-per-node", "8"],
            "fsdp=4,pp=4,zero=2",
        ),
        (
            "12xH100",  # a node and a half: two nodes of six
            "dp=4,pp=3,vp=1,zero=2",
            ["torchrun", "--nnodes", "2", "--nproc-per-node", "6"],
            "fsdp=4,pp=3,zero=2",
        ),
        ("11xH100", "pp=11,vp=1,zero=0", ["torchrun", "--nnodes", "11", "--nproc-per-node", "1"], "pp=11"),
    ],
)
def test_the_command_starts_the_processes_of_a_mesh(
    tmp_path: Path, hardware: str, mesh: str, begins: list[str], wanted: str
) -> None:
    """The mesh that is written is one that `train` takes for so many processes."""
    file = tmp_path / "recipe.yaml"
    model = "gpt2+feed-forward=MoE(router=Router(n_experts=8,top_k=2))" if "ep=" in mesh else "gpt2"
    found = answer("plan", model, "--hardware", hardware, "--mesh", mesh, "--write", file)
    words = shlex.split(found["train"])
    assert words[: len(begins)] == begins
    assert words[words.index("--mesh") + 1] == wanted
    n = int(hardware.partition("x")[0])
    assert parse(wanted, n).processes == n
    if begins[0] == "anyformer":
        assert words[words.index("--nproc") + 1] == str(n)
    assert read(file).precision == "bf16"


def test_the_command_reads_what_the_plan_read(tmp_path: Path) -> None:
    """Without its --as and --import the model would be another, or none."""
    (tmp_path / "parts.py").write_text("", encoding="utf-8")
    read_by = ("--as", "gpt2", "--import", str(tmp_path / "parts.py"))
    found = answer("plan", "gpt2", "--hardware", "H100", *read_by, "--write", tmp_path / "recipe.yaml")
    assert shlex.join(read_by) in found["train"]


def test_calibrate_says_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.costs.rates import RATES

    machine = Device("this", {"float32": 9e10}, 8 * 10**9, 7e9, "measured: a test", rates=RATES)
    asked = []

    def calibrate(device: str, dtypes: object, *, anew: bool, say: object) -> here.Calibration:
        asked.append((device, dtypes, anew))
        return here.Calibration(machine, 12.0)

    monkeypatch.setattr(here, "calibrate", calibrate)
    shown = succeeded(run("calibrate", "--device", "cpu", "--anew", "--dtype", "float32")).stdout
    assert asked == [("cpu", ("float32",), True)]
    for words in ("measured: a test", "90 GFLOP/s", "7 GB/s", "measured in 12 s"):
        assert words in shown, shown
    assert str(here.Calibration(machine, 12.0)) == shown.rstrip("\n")
    assert answer("calibrate", "--device", "cpu")["rates"]["update_seconds"] == RATES.update_seconds


def test_what_is_sent_is_what_is_planned() -> None:
    given = ("plan", "gpt2", "--hardware", "4xH100", "--batch-tokens", "8192", "--params", "5M")
    rows = answer(*given, "--mesh", "dp=2,tp=2,zero=3", "--simulate")["traffic"]
    assert {(row["axis"], row["collective"]) for row in rows} == {
        ("fsdp", "all-gather"), ("fsdp", "reduce-scatter"), ("tp", "all-reduce"),
    }  # fmt: skip
    assert all(row["planned_nbytes"] == row["simulated_nbytes"] > 0 for row in rows)
    assert "difference 0" in succeeded(run(*given, "--mesh", "dp=4,zero=0", "--simulate")).stdout
    rows = answer(*given, "--mesh", "pp=2,dp=2,zero=3", "--simulate")["traffic"]
    assert {(row["axis"], row["collective"]) for row in rows} >= {("pp", "activations"), ("pp", "all-reduce")}
    assert {row["stage"] for row in rows} == {0}  # the embeddings are there
    assert all(row["planned_nbytes"] == row["simulated_nbytes"] > 0 for row in rows)
    given = ("plan", "mixtral-8x7b", "--hardware", "4xH100", "--params", "20M", "--mesh", "dp=2,tp=2,ep=2")
    assert answer(*given)["traffic"] is None
    refused(run(*given, "--simulate"), "--simulate: ", "ep = 2 beside tp = 2")
    refused(run("plan", "gpt2", "--hardware", "H100", "--simulate"), "one device sends nothing")
    result = run("plan", "mixtral-8x7b", "--hardware", "8xH100", "--mesh", "dp=8,ep=8,zero=3", "--simulate")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "nearest" in result.stdout


def test_what_cannot_be_run_sends_nothing() -> None:
    given = ("plan", "hourglass-linear-enwik8", "--hardware", "2xH100", "--mesh", "cp=2", "--batch-tokens", "65536")
    assert answer(*given)["traffic"] is None
    refused(run(*given, "--simulate"), "--simulate: this cannot be trained on the mesh cp=2", "Shortened")


def test_every_key_is_documented() -> None:
    found = answer("plan", "llama2-7b", "--hardware", "8xH100", "--mesh", "dp=8,zero=3")
    inner = found["plan"]
    objects = (found, *found["traffic"], inner, inner["mesh"], found["efficiency"], found["optimal_tokens"])
    known = {key for each in objects for key in each} | {"devices", "device", "total", "active"}
    assert known <= said("plan")
    found = answer("cost", "gpt2", "--device", "H100")["roofline"]
    phase = found["phases"]["training"]
    assert said("cost --device") >= {*found, *phase, *phase["parts"][0], *found["phases"]}
    found = answer(
        "profile", "gpt2", "--params", "1M", "--vocab", "256", "--batch", "1", "--seq-len", "16", "--device", "cpu"
    )
    known = {*found, *found["classes"]["training"]}
    assert keys_of("profile") == known
    assert {"measured", "predicted", "error", *found["classes"]["training"]["movement"]} <= said("profile")
    assert keys_of("calibrate") == {"version", "seconds", "rates", *Device("", {}, 1, 1.0, "").as_json()}


def said(heading: str) -> set[str]:
    """Return all that stands in backquotes in a section of docs/json.md."""
    return set(re.findall(r"`([\w-]+)`", section("json.md", heading)))
