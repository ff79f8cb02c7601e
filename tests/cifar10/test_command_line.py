"""Wrong commands are refused in one line, with exit code 2, before torch is imported and before anything starts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from reference.cifar10 import __main__ as program
from reference.cifar10.arguments import parse, without_local_rank
from reference.cifar10.config import Config, DownloadOptions, make_config, read_yaml
from reference.cifar10.options import OptionError, help_text
from reference.cifar10.presets import PRESETS

WRONG = [
    # command line, what the line must say
    ("", "no command"),
    ("trian", "unknown command 'trian'"),
    ("rnu", "did you mean run?"),
    ("run --bacth_size=64", "unknown option --bacth_size; did you mean --batch_size?"),
    ("run --matser-port 29500", "unknown option --matser-port; did you mean --master_port?"),
    ("run --learning-rat=0.1", "did you mean --learning_rate?"),
    ("run --zzzzzz=1", "unknown option --zzzzzz"),
    ("run --mirror=x", "unknown option --mirror"),
    ("run digits", "'digits' is not an option"),
    ("run --seed 1 2", "'2' is not an option"),
    ("run -s 1", "'-s' is not an option"),
    ("run -batch_size=3", "did you mean --batch_size?"),
    ("run - run", "'-' is not an option"),
    ("run -- --trace", "'--' is not an option"),
    ("run --batch_size", "--batch_size needs a value"),
    ("run --batch_size --seed=1", "--batch_size needs a value"),
    ("run --config", "--config needs a value"),
    ("run --batch_size=abc", "batch_size must be a whole number of at least 1 (images), got 'abc'"),
    ("run --batch_size=64.0", "whole number"),
    ("run --batch_size=1e3", "whole number"),
    ("run --batch_size=True", "whole number"),
    ("run --batch_size=None", "got nothing"),
    ("run --batch_size=0", "at least 1"),
    ("run --batch_size=-64", "at least 1"),
    ("run --seed -1", "seed must be"),
    ("run --seed=4294967296", "at most 4294967295"),
    ("run --learning_rate=fast", "learning_rate must be a number"),
    ("run --learning_rate=nan", "learning_rate must be a number"),
    ("run --learning_rate=inf", "learning_rate must be a number"),
    ("run --learning_rate=-0.1", "at least 0"),
    ("run --momentum=1", "below 1"),
    ("run --weight_decay=-1", "at least 0"),
    ("run --num_epochs=0", "at least 1"),
    (
        "run --num_epochs=2 --num_warmup_epochs=3",
        "num_warmup_epochs (3) must not be more than num_epochs (2)",
    ),
    ("run --num_workers=-1", "at least 0"),
    ("run --validate_every=0", "at least 1"),
    ("run --checkpoint_every=0", "at least 1"),
    ("run --stop_iteration=0", "at least 1"),
    ("run --timeout=0", "at least 1"),
    ("run --threads=0", "at least 1"),
    ("run --master_port=70000", "at most 65535"),
    ("run --nproc_per_node=0", "at least 1"),
    ("run --max_train_samples=100 --batch_size=128", "at least one batch"),
    ("run --deterministic=1", "deterministic must be true or false"),
    ("run --deterministic maybe", "deterministic must be true or false, got 'maybe'"),
    ("run --backend=glo", "did you mean gloo?"),
    ("run --dataset=cifar", "did you mean cifar10?"),
    ("run --with_amp=fp8", "with_amp must be one of fp16, bf16, auto"),
    ("run --train_metrics=ful", "did you mean full?"),
    ("run --preset=fast95", "did you mean fast94?"),
    ("run --pipeline=torch", "pipeline must be one of batched, torchvision"),
    ("run --label_smoothing=1", "below 1"),
    ("run --compile --backend=xla-tpu", "compile is for CPUs and GPUs"),
    ("run --preset=fast94 --num_epochs=3", "num_warmup_epochs (5) must not be more than num_epochs (3)"),
    ("run --start_method=frok", "did you mean fork?"),
    ("run --backend=gloo --nproc_per_node=3 --batch_size=64", "take 63 or 66"),
    ("run --backend=gloo --nproc_per_node=2 --nnodes=2 --batch_size=2", "take 4"),
    ("run --config=/nowhere/file.yaml", "No such file"),
    ("run --local_rank=x", "--local_rank must be a whole number"),
    ("run --local-rank", "--local-rank must be a whole number"),
    ("data --mirorr=x", "did you mean --mirror?"),
    ("data --batch_size=1", "unknown option --batch_size"),
    ("data --retries=-1", "at least 0"),
    ("data --mirror=example.org", "mirror must be an address"),
]


@pytest.mark.parametrize(("line", "says"), WRONG, ids=[line or "(nothing)" for line, _ in WRONG])
def test_refused_in_one_line(line: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "reference.cifar10.launch", None)  # importing it now is an error
    with pytest.raises(SystemExit) as exit_info:
        program.main(line.split())
    output = capsys.readouterr()
    assert exit_info.value.code == 2
    assert output.out == ""
    assert output.err.startswith("error: ") and output.err.count("\n") == 1
    assert says in output.err


@pytest.mark.parametrize(
    "line", ["run --bacth_size=64", "run --batch_size=0", "run --backend=gloo --nproc_per_node=5"]
)
def test_torch_is_not_imported(line: str) -> None:
    code = (
        "import sys, atexit, reference.cifar10.__main__ as program\n"
        "atexit.register(lambda: print('torch' in sys.modules, 'torchvision' in sys.modules))\n"
        "program.main(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout.split() == ["False", "False"]
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_the_program_itself_exits_with_2() -> None:
    command = [sys.executable, "-m", "reference.cifar10", "run", "--matser-port=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown option --matser-port; did you mean --master_port?\n"


@pytest.mark.parametrize(
    "line",
    [
        "run --local-rank=1 --seed=7",
        "--local_rank=1 run --seed=7",
        "--local-rank 1 run --seed 7",
        "run --seed 7 --local_rank 1",
    ],
)
def test_local_rank_of_torch_distributed_launch_is_accepted(line: str) -> None:
    command = parse(line.split())
    assert (command.name, command.options) == ("run", {"seed": "7"})


def test_local_rank_is_no_option_of_ours() -> None:
    assert without_local_rank(["run", "--local_rank", "3", "x"]) == ["run", "x"]
    assert "local_rank" not in {spec.name for spec in dataclasses.fields(Config)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run", {}),
        ("run --batch_size=64", {"batch_size": 64}),
        ("run --batch-size 64", {"batch_size": 64}),
        ("run --batch_size=64 --batch_size=32", {"batch_size": 32}),
        ("run --learning_rate=1e-2", {"learning_rate": 0.01}),
        ("run --learning_rate=1", {"learning_rate": 1.0}),
        ("run --deterministic", {"deterministic": True}),
        ("run --deterministic --seed=3", {"deterministic": True, "seed": 3}),
        ("run --deterministic False", {"deterministic": False}),
        ("run --with_tensorboard=false", {"with_tensorboard": False}),
        ("run --nowith_tensorboard", {"with_tensorboard": False}),
        ("run --no-with-tensorboard", {"with_tensorboard": False}),
        ("run --with_amp", {"with_amp": "auto"}),
        ("run --with_amp=True", {"with_amp": "auto"}),
        ("run --with_amp=False", {"with_amp": None}),
        ("run --with_amp=bf16", {"with_amp": "bf16"}),
        ("run --backend=None", {"backend": None}),
        ("run --data_path=2024", {"data_path": "2024"}),
        ("run --data_path=[1,2]", {"data_path": "[1,2]"}),
        ("run --data_path=None", {"data_path": None}),
        ("run --master_addr=10.1", {"master_addr": "10.1"}),
        ("run --output_path=-", {"output_path": "-"}),
        ("run --resume_from=a=b", {"resume_from": "a=b"}),
        ("run --backend=gloo --nproc_per_node=2", {"backend": "gloo", "nproc_per_node": 2}),
    ],
)
def test_accepted(line: str, expected: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Config] = []

    class Launch:
        @staticmethod
        def launch(config: Config) -> int:
            seen.append(config)
            return 0

    monkeypatch.setitem(sys.modules, "reference.cifar10.launch", Launch)  # type: ignore[arg-type]
    program.main(line.split())
    assert seen == [Config(**expected)]  # type: ignore[arg-type]


def test_exit_code_of_the_run_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "reference.cifar10.launch", type("L", (), {"launch": staticmethod(lambda _: 143)})
    )
    with pytest.raises(SystemExit) as exit_info:
        program.main(["run"])
    assert exit_info.value.code == 143


class TestYaml:
    def write(self, tmp_path: Path, text: str) -> str:
        file = tmp_path / "train.yaml"
        file.write_text(text)
        return str(file)

    def test_flags_win(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, "batch_size: 128\nlearning_rate: 1e-3\nwith_amp: true\nbackend: null\n")
        config = make_config({"batch_size": "64"}, file)
        assert (config.batch_size, config.learning_rate, config.with_amp, config.backend) == (
            64,
            1e-3,
            "auto",
            None,
        )
        assert config == Config(batch_size=64, learning_rate=1e-3, with_amp="auto")

    def test_every_option_can_be_set(self, tmp_path: Path) -> None:
        import yaml

        original = Config(seed=1, dataset="fake", stop_iteration=4, deterministic=True, timeout=30.5)
        assert make_config({}, self.write(tmp_path, yaml.safe_dump(original.to_dict()))) == original

    def test_empty(self, tmp_path: Path) -> None:
        assert read_yaml(self.write(tmp_path, "# nothing\n")) == {}

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("bacth_size: 3", "unknown option bacth_size; did you mean batch_size?"),
            ("batch_size: 3.5", "batch_size must be a whole number"),
            ("batch_size: true", "batch_size must be a whole number"),
            ("batch_size: [1, 2]", "batch_size must be a whole number"),
            ("deterministic: 1", "deterministic must be true or false"),
            ("model: 3", "model must be text"),
            ("- batch_size", "must hold lines like"),
            ("just text", "must hold lines like"),
            ("1: 2", "must hold lines like"),
            ("batch_size: [1", "is not YAML"),
            ("\x00", "is not YAML"),
        ],
    )
    def test_errors_name_file_and_option(self, text: str, says: str, tmp_path: Path) -> None:
        file = self.write(tmp_path, text)
        with pytest.raises(OptionError) as error:
            make_config({}, file)
        assert says in str(error.value) and file in str(error.value)
        assert "\n" not in str(error.value)


class TestPreset:
    def test_it_changes_defaults_and_nothing_else(self) -> None:
        config = make_config({"preset": "fast94"})
        assert config.changed() == {"preset": "fast94"}
        different = {name for name, value in config.to_dict().items() if value != getattr(Config(), name)}
        assert different == {"preset", *PRESETS["fast94"]} - {
            "batch_size",
            "learning_rate",
        }  # as the defaults are

    def test_flags_and_files_win(self, tmp_path: Path) -> None:
        file = tmp_path / "train.yaml"
        file.write_text("preset: fast94\nlabel_smoothing: 0.2\nnum_epochs: 30\n")
        config = make_config({"num_epochs": "40"}, str(file))
        assert (config.preset, config.label_smoothing, config.num_epochs) == ("fast94", 0.2, 40)
        assert config.model == "resnet18_cifar"

    def test_changed_options_make_the_same_run_also_where_a_flag_went_back_to_the_usual(self) -> None:
        config = make_config({"preset": "fast94", "with_amp": "none", "weight_decay": "1e-4", "seed": "3"})
        assert config.with_amp is None and config.changed() == {
            "preset": "fast94", "with_amp": None, "weight_decay": 1e-4, "seed": 3,
        }  # fmt: skip
        assert make_config({name: str(value) for name, value in config.changed().items()}) == config


class TestConfig:
    def test_defaults(self) -> None:
        config = Config()
        expected = {
            "seed": 543, "model": "resnet18", "batch_size": 512, "momentum": 0.9, "weight_decay": 1e-4, "learning_rate": 0.4,
            "num_epochs": 5, "num_warmup_epochs": 1, "validate_every": 3, "checkpoint_every": 200, "log_every_iters": 15,
            "backend": None, "nproc_per_node": None, "resume_from": None, "with_clearml": False, "with_amp": None,
            "dataset": "auto", "data_path": None, "stop_iteration": None, "max_train_samples": None,
        }  # fmt: skip
        assert {name: getattr(config, name) for name in expected} == expected
        assert config.changed() == {} and config.spawn_options == {}

    def test_is_frozen_and_keyword_only(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            Config().seed = 1  # type: ignore[misc]
        with pytest.raises(TypeError):
            Config(1)  # type: ignore[misc]

    def test_python_values_are_checked_as_well(self) -> None:
        with pytest.raises(OptionError, match="batch_size must be a whole number"):
            Config(batch_size=2.5)  # type: ignore[arg-type]
        assert Config(with_amp=True).with_amp == "auto"  # type: ignore[arg-type]

    def test_changed_options_make_the_same_run(self) -> None:
        config = Config(seed=4, backend="gloo", nproc_per_node=2, deterministic=True, learning_rate=0.1)
        flags = {name: str(value) for name, value in config.changed().items()}
        assert make_config(flags) == config


@pytest.mark.parametrize("line", ["run --help", "run -- --help", "run -h", "help run", "run --seed=1 --help"])
def test_help_of_run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    program.main(line.split())
    text = capsys.readouterr().out
    for spec in dataclasses.fields(Config):
        assert f"--{spec.name}" in text
    assert max(len(row) for row in text.splitlines()) <= 110
    words = " ".join(text.split())
    assert "default: 512" in words and "default: 0.4" in words and "[seconds; default: 600]" in words


def test_help_names_every_option_with_its_meaning() -> None:
    for options in (Config, DownloadOptions):
        words = " ".join(help_text(options).split())
        for spec in dataclasses.fields(options):
            assert spec.metadata["meaning"] in words
            assert all(choice in words for choice in spec.metadata["choices"])


def test_overview_names_both_commands(capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["--help"])
    text = capsys.readouterr().out
    assert "reference.cifar10 run" in text and "reference.cifar10 data" in text


def test_check_looks_at_the_options_of_a_run_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "reference.cifar10.launch", None)  # to import it would be an error
    program.main(["check", "--batch_size=64", "--nproc_per_node=2"])
    with pytest.raises(SystemExit) as ended:
        program.main(["check", "--batch_size=63", "--nproc_per_node=2"])
    assert ended.value.code == 2
    assert "batch_size 63 cannot be shared out over 2 processes" in capsys.readouterr().err
