"""Reading a Hugging Face config.json strictly: every setting is used, known to change no number, or refused by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from anyformer.errors import CheckpointError, SpecError
from anyformer.layers import GELU, ActivationSpec, Identity, ReLU, ReLU2, Sigmoid, SiLU, Tanh
from anyformer.spec.ranges import MOST_LAYERS

T = TypeVar("T", int, float, bool, str)
V = TypeVar("V")
INFINITY = {"__float__": "Infinity"}  # as transformers 5 writes it, JSON having none
REQUIRED: Any = object()
# Beyond any model there is, and within what 64 bits count: a matrix of two such sizes still has a number of bytes.
LARGEST_SIZE, LARGEST_RATE = 10**8, 1e30

# Spellings of one function agree to about 1e-7; the first of a function is the one that is written.
ACTIVATIONS: dict[str, ActivationSpec] = {
    "gelu": GELU(),
    "gelu_new": GELU(form="tanh"),
    "gelu_pytorch_tanh": GELU(form="tanh"),
    "gelu_fast": GELU(form="tanh"),
    "gelu_accurate": GELU(form="tanh"),
    "gelu_python": GELU(),
    "gelu_python_tanh": GELU(form="tanh"),
    "quick_gelu": GELU(form="quick"),
    "relu": ReLU(),
    "relu2": ReLU2(),
    "silu": SiLU(),
    "swish": SiLU(),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "linear": Identity(),
}

# Ids of tokens, or lists of them: they go along into what is written.
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
# What any configuration may hold without a number of the model changing: bookkeeping, token ids, defaults for sampling,
# rates of dropout and of experts' losses (a recipe's), how it is computed, heads for other tasks.
# fmt: off
HARMLESS = frozenset((
    "model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "use_cache", "name_or_path",
    "tokenizer_class", "torchscript", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "decoder_start_token_id", "is_decoder", "is_llama_config", "output_hidden_states", "output_attentions",
    "output_scores", "return_dict", "return_dict_in_generate", "use_return_dict", "id2label", "label2id",
    "num_labels", "problem_type", "finetuning_task", "task_specific_params", "prefix", "max_length", "max_new_tokens",
    "min_length", "do_sample", "early_stopping", "temperature", "top_k", "top_p", "typical_p", "num_beams",
    "num_beam_groups", "diversity_penalty", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "forced_bos_token_id",
    "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout",
    "chunk_size_feed_forward", "pretraining_tp", "summary_type", "summary_use_proj", "summary_activation",
    "summary_proj_to_labels", "summary_first_dropout", "gradient_checkpointing", "attn_implementation",
    "tie_encoder_decoder", "use_bfloat16", "tf_legacy_loss", "unsloth_fixed", "unsloth_version", "classifier_dropout",
    "dropout", "embed_dropout", "resid_dropout", "layerdrop", "ffn_dropout",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "pooler_dropout", "qa_dropout",
    "seq_classif_dropout", "summary_last_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop",
    "classif_dropout", "dropout_rate", "residual_dropout", "embedding_dropout", "mlp_dropout", "emb_pdrop",
    "output_past", "eos_token_ids", "cache_implementation", "num_logits_to_keep", "use_mamba_kernels", "use_mambapy",
    "use_associative_scan", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "aux_loss_alpha",
    "seq_aux", "ep_size",
    "auto_map",  # code of the directory's own, which is not run: the class of its model_type is what is read
))
# fmt: on
CAUSAL = "is_causal"  # asked of all configurations by what makes masks in transformers
ON = frozenset((CAUSAL,))  # what classes of transformers do where nothing is said: off, it changes numbers


class Settings:
    """The settings of one configuration, each taken once; `close` refuses what nobody took.

    A switch that is off (None, False, 0, empty) cannot change a number, so an unknown one passes unless it is ON by itself.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config, self._where = config, where
        self._taken: set[str] = set()

    def rename(self, names: Mapping[str, str]) -> None:
        """Know settings by the names that a class keeps them under; `names` are others for them, which come first."""
        found = {name: value for name, value in self._config.items() if name not in names}
        other = {names[name]: value for name, value in self._config.items() if name in names and value is not None}
        self._config = {**found, **other}

    def put(self, settings: Mapping[str, Any]) -> None:
        """Know settings as these, in the place of what is written."""
        self._config = {**self._config, **settings}

    def take(self, name: str, kind: type[T], default: T = REQUIRED) -> T:
        """A setting; null and absent mean the default. Raises CheckpointError naming setting, value and type."""
        value = self._given(name, kind, default)
        if value is None:
            if default is REQUIRED:
                raise CheckpointError(
                    f"{self._where} has no setting {name!r}, without which the model's size is unknown"
                )
            return default
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """A setting or None. Raises CheckpointError for one of another type, and for numbers that no model has."""
        return self._given(name, kind, None)

    def _given(self, name: str, kind: type[T], usual: T | None) -> T | None:
        value = self.written(name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if value is None or (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
            if value and value != usual and not self._possible(name, value):
                raise self.refusal(name, "is no number that a model has; mend the file")
            return value
        raise CheckpointError(f"{self._where}: {name} = {value!r} must be of type {kind.__name__}")

    @staticmethod
    def _possible(name: str, value: object) -> bool:
        """Whether a setting of this name may have a value, other than 0, that has its type; what counts layers says so."""
        if not isinstance(value, int | float) or value is True:
            return True
        if isinstance(value, float):
            return 1 / LARGEST_RATE < value < LARGEST_RATE
        return 0 < value <= (MOST_LAYERS if "layer" in name else LARGEST_SIZE)

    def positive(self, name: str, kind: type[T], default: T = REQUIRED) -> T:
        """A setting that is above 0: a size, a rate. Raises CheckpointError."""
        return self._above_zero(name, self.take(name, kind, default))

    def _above_zero(self, name: str, value: V) -> V:
        if not isinstance(value, bool) and value == 0:
            raise self.refusal(name, "must be above 0; mend the file")
        return value

    def names(self, name: str) -> bool:
        """Whether a setting is there at all, be it null."""
        return name in self._config

    def nullable(self, name: str, kind: type[T], absent: T | None) -> T | None:
        """A setting whose null means something else than its absence; a number is above 0. Raises CheckpointError."""
        return self._above_zero(name, self.optional(name, kind)) if self.names(name) else absent

    def section(self, name: str) -> Settings | None:
        """A setting that is a table of settings; None for an absent or empty one. Raises CheckpointError."""
        value = self.written(name)
        if value is not None and not isinstance(value, Mapping):
            raise CheckpointError(f"{self._where}: {name} = {value!r} must be a table of settings")
        return Settings(value, f"{self._where}: {name}") if value else None

    def inner(self, name: str) -> Settings:
        """A setting that is a table of settings, none of which need be said. Raises CheckpointError."""
        return self.section(name) or Settings({}, f"{self._where}: {name}")

    def numbers(self, name: str) -> tuple[float, ...]:
        """A setting that is a list of numbers. Raises CheckpointError naming setting, value and type."""
        value = self.written(name)
        known = isinstance(value, list) and all(type(item) in (int, float) for item in value)
        if not known or not all(self._possible(name, float(item)) for item in value):
            raise CheckpointError(f"{self._where}: {name} = {value!r} must be a list of numbers above 0")
        return tuple(map(float, value))

    def by_layer(self, name: str, kind: type[T], n: int, default: T | list[T]) -> list[T]:
        """A setting that has a number for each of `n` layers, or one for all; whole ones are above 0. Raises CheckpointError."""
        value = self.written(name)
        value = default if value is None else value
        each: list[Any] = value if isinstance(value, list) else [value] * n
        known = len(each) == n and all(type(item) in (int, kind) for item in each)
        if not known or not all((item == 0 and kind is float) or self._possible(name, item) for item in each):
            raise self.refusal(name, f"must be a number{' above 0' if kind is int else ''}, or {n} of them")
        return each

    def layers(self, name: str, n: int, usual: Iterable[int] = (), first: int = 0) -> list[int]:
        """A setting that lists some of `n` layers by their numbers, which count from `first`; `usual` where it is absent.

        Numbers beyond them say nothing, as in the classes: a configuration may be cut to fewer layers. Raises CheckpointError.
        """
        found = self.written(name)
        found = [*usual] if found is None else found
        if not isinstance(found, list) or not all(type(i) is int and first <= i for i in found):
            raise self.refusal(name, f"must be a list of some of the {n} layers, by numbers from {first}")
        return [i for i in dict.fromkeys(found) if i < first + n]

    def strings(self, name: str) -> tuple[str, ...] | None:
        """A setting that is a list of words; None for an absent one. Raises CheckpointError."""
        value = self.written(name)
        if value is not None and (not isinstance(value, list) or not all(isinstance(item, str) for item in value)):
            raise CheckpointError(f"{self._where}: {name} = {value!r} must be a list of words")
        return None if value is None else tuple(value)

    def words(
        self, name: str, n: int, known: Collection[str], usual: Iterable[str], older: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """A setting that is a word for each of `n` layers, `usual` where it is absent; `older` words mean others.

        Raises CheckpointError for another number of words, and for one that is not `known`.
        """
        found = tuple((older or {}).get(word, word) for word in self.strings(name) or usual)
        if len(found) != n or not set(found) <= set(known):
            raise self.refusal(name, f"must be {n} times {' or '.join(known)}")
        return found

    def flags(self, name: str, n: int, usual: Sequence[int], does: str) -> Sequence[int]:
        """A setting that is 1 for each of `n` layers that `does` something, else 0; `usual` where it is absent.

        Raises CheckpointError.
        """
        found = self.written(name) or usual
        if not isinstance(found, Sequence) or len(found) != n or not all(each in (0, 1) for each in found):
            raise self.refusal(name, f"must be {n} times 1, for a layer that {does}, or 0")
        return found

    def written(self, name: str) -> Any:
        """A setting as it is written, for the caller to check; None where it is absent."""
        self._taken.add(name)
        return self._config.get(name)

    def word(self, name: str, known: Iterable[T], default: T) -> T:
        """A setting that is one of `known`: words, or True and False. Raises CheckpointError."""
        value = self.take(name, type(default), default)
        self.require(name, *known)
        return value

    def activation(self, name: str, default: str) -> ActivationSpec:
        """The activation that a setting names. Raises CheckpointError for one that we don't have."""
        return ACTIVATIONS[self.word(name, ACTIVATIONS, default)]

    def untaken(self, names: Iterable[str]) -> list[str]:
        """Those of these settings that nobody has asked for."""
        return [name for name in names if name not in self._taken]

    def require(self, name: str, *allowed: Any) -> None:
        """Refuse every other value of a setting; null and absent pass."""
        if self.written(name) not in (None, *allowed):
            raise self.refusal(name, f"is not computed here; only {' or '.join(map(repr, allowed))} is")

    def ignore(self, *names: str) -> None:
        """Take settings that change no number."""
        self._taken.update(names)

    def close(self) -> None:
        """Refuse settings that nobody took, and ids that are none. Raises CheckpointError naming the first, with its value."""
        for name in TOKEN_IDS:
            value = self._config.get(name)
            if not all(each is None or type(each) is int for each in (value if isinstance(value, list) else [value])):
                raise self.refusal(name, "must be a token's id, or a list of them; mend the file")
        for name in self.left():
            raise self.refusal(name, "is unknown here and might change what is computed; remove it if it does not")

    def left(self) -> list[str]:
        """The settings that might change a number and that nobody took."""
        passed = self._taken | HARMLESS
        return [n for n, v in self._config.items() if (v or n in ON) and n not in passed and not n.startswith("_")]

    @contextmanager
    def told(self) -> Iterator[None]:
        """Within it what is wrong with a part is said with the settings that were first asked for there: it has other names."""
        before = set(self._taken)
        try:
            yield
        except SpecError as error:
            asked = [name for name in self._config if name in self._taken - before]
            if not asked:
                raise
            said = ", ".join(f"{name} = {self._config[name]!r}" for name in asked)
            raise SpecError(f"{error}; the file says {said}") from None

    def refusal(self, name: str, reason: str) -> CheckpointError:
        """The error that names a setting and its value."""
        return CheckpointError(f"{self._where}: {name} = {self._config.get(name)!r} {reason}")


def spelling(activation: ActivationSpec) -> str | None:
    """The name that a configuration gives to an activation; None where it has none."""
    return next((name for name, known in ACTIVATIONS.items() if known == activation), None)
