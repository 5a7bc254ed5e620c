"""Law 2: declared parameters are those that are built; they equal the published total, or an erratum says why not."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings

from anyformer.families import PRESETS, Preset
from anyformer.model import build
from anyformer.spec import ModelSpec, Place, parameters, tensors
from tests.laws.combinations import decoders
from tests.laws.models import every_preset
from tests.sample import combinations
from tools.catalogue import DATA, catalogue

UNITS = {"M": 10**6, "B": 10**9}
# Counted by hand from the papers' tables, or published to the digit: Radford et al.'s checkpoints, Meta's model cards.
EXACT = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "gemma-2b": 1_981_884_416 + 256_000 * 2048,  # the paper's table 2, the vocabulary as released
    "gemma-7b": 7_751_248_896 + 256_000 * 3072,
    "t5-small": 60_506_624,
    "t5-large": 737_668_096,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "phi4-mini": 3_836_021_760,
    # Counts of transformers' classes at the released sizes.
    "xlstm-7b": 6_865_424_896,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "olmo3-7b": 7_298_011_136,
    "olmo3-32b": 32_233_522_176,
    "olmoe-1b-7b": 6_919_161_856,
    "glm-4-9b": 9_399_951_360,
    "glm-4-32b-0414": 32_566_081_536,
    "glm-4.5-air": 106_852_245_504,
    "glm-4.5": 352_797_814_784,
    "ministral-8b": 8_019_808_256,
    "lfm2-8b-a1b": 8_339_929_856,
    "glm-5.3-flash": 313_326_816_766,  # likewise
    "a.x-k2-light": 20_314_494_976,  # the parameters of its class, on the meta device
    "mistral-large-4": 1_050_118_202_912,  # the parameters of its class and a head, on the meta device
    "muse-glimmer": 27_854_780_928,  # likewise
    "step-3.5-flash": 196_956_118_272,  # the parameters of its class, on the meta device
    "laguna-33b": 33_189_975_808 - 39 * 256,  # the class counts its corrections
    "kolibri-1": 78_103_055_360,
    "granite-moe-swa": 37_039_117_312,
    "command-a-moe": 190_004_928_512,
    "apertus-1.5-8b": 8_091_086_912,
    "lfm3-1.7b": 1_728_801_536,
    "zaya1-8b": 8_840_488_784,
    "inkling": 975_340_270_146,
    "zamba2-1.2b": 1_215_064_704,
    "zamba2-2.7b": 2_662_214_560,
    "a.x-k1": 518_983_052_288,
    "minicpm3-4b": 4_073_875_968,
    "flexolmo-7x7b-1t": 33_270_665_216,
    "hunyuan-a13b": 80_393_183_232,
    "youtu-llm-2b": 1_961_560_064,
    "ctrl": 1_637_964_550,
    "mvp": 406_293_504,
    "codegen-350m": 356_712_448,
    "codegen-6b": 7_064_213_504,
    "codegen-16b": 16_032_155_648,
    "xglm-564m": 564_463_616,
    "xglm-7.5b": 7_492_771_840,
    "biogpt": 346_763_264,
    "megatron-bert-345m": 333_671_808,
    "xlm-roberta-xl": 3_482_741_760,
    "xlm-roberta-base": 278_295_186,
    "xlm-roberta-large": 560_142_482,
    "camembert-base": 110_655_493,
    "rembert": 993_263_548,
    "jina-embeddings-v3": 559_616_146,
    "mpnet-base": 109_518_527,
    "roformer-base": 124_197_968 - 1536 * 64,  # the class counts its table of angles
    "nomic-embed-text-v1": 137_354_304,
    "eurobert-210m": 310_266_624,
    "eurobert-610m": 755_625_600,
    "eurobert-2.1b": 2_403_092_736,
    "glm-4.7-flash": 29_943_390_976,
    "glm-5": 743_911_199_232,
    "deepseek-v3.2": 671_877_929_216,
    "deepseek-v4-flash": 284_325_869_015,
    "solar-open-100b": 102_651_793_408,
    "k-exaone-236b-a23b": 236_571_150_336,
    "hy-v3-295b": 295_033_528_320,
    "mellum-2-12b": 12_149_923_072,
    "helium-1-2b": 2_172_643_840,
    "cwm-32b": 32_581_097_472,
    "persimmon-8b": 9_397_175_296,
    "mbart-large-50": 610_879_488,
    "m2m100-418m": 483_905_536,
    "nllb-200-distilled-600m": 615_073_792,
    "bigbird-pegasus-large": 576_891_904,
    "pegasus-large": 570_797_056 - 2 * 1024 * 1024,  # the class counts its tables of sinusoids
    "plbart-base": 139_220_736,
    "blenderbot-400m-distill": 364_802_560,
    "smollm3-3b": 3_075_098_624,
    "seed-oss-36b": 36_151_104_512,
    "ernie-4.5-0.3b": 360_748_032,
    "afm-4.5b": 4_619_184_640,
    "exaone-4.0-1.2b": 1_279_391_488,
    "exaone-4.0-32b": 32_003_216_384,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024,
    "stablelm-3b-4e1t": 2_795_443_200,
    "stablelm-2-1.6b": 1_644_515_328,
    "stablelm-2-12b": 12_143_185_920,
    "starcoderbase-15.5b": 15_517_456_384,
    "santacoder-1.1b": 1_124_886_528,
    "minimax-text-01": 456_089_655_296,
    "minimax-m2": 228_689_748_992,
    "minimax-m3": 426_174_565_632,
    "hy-v4": 58_278_193_133,
    "dots.llm1": 142_774_373_888,
    "dbrx": 131_596_523_520,
    "granite-3.3-2b": 2_533_539_840,
    "granite-3.3-8b": 8_170_864_640,
    "granite-3.0-1b-a400m": 1_334_628_352,
    "granite-3.0-3b-a800m": 3_298_793_472,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "recurrentgemma-2b": 2_682_862_080,
    "recurrentgemma-9b": 8_579_977_216,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "kimi-linear-48b-a3b": 49_122_675_072,
    "mamba-130m": 129_135_360,
    "mamba-370m": 371_516_416,
    "mamba-790m": 793_204_224,
    "mamba-1.4b": 1_372_178_432,
    "mamba-2.8b": 2_768_345_600,
    "falcon-mamba-7b": 7_272_665_088,
    "jamba-v0.1": 51_570_323_328,
    "jamba-1.5-large": 398_555_145_696,
}


@every_preset
def test_declared_is_built(spec: ModelSpec) -> None:
    declared = {path: weight.shape for path, weight in tensors(spec, Place())}
    assert {path: tuple(value.shape) for path, value in build(spec, device="meta").named_parameters()} == declared


@given(spec=decoders())
@settings(max_examples=combinations(40), deadline=None)
def test_declared_is_built_for_combinations(spec: ModelSpec) -> None:
    built = {path: tuple(value.shape) for path, value in build(spec, device="meta").state_dict().items()}
    assert built == {path: weight.shape for path, weight in tensors(spec, Place())}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_published_total(preset: Preset) -> None:
    total = parameters(preset.spec).total
    if preset.name in EXACT:
        assert total == EXACT[preset.name]
    if preset.published is None:
        return
    digits = re.fullmatch(r"(\d+)(?:\.(\d+))?([MB])", preset.published)
    assert digits, preset.published
    shown = f"{total / UNITS[digits[3]]:.{len(digits[2] or '')}f}{digits[3]}"
    assert shown == preset.published or preset.erratum, (
        f"{preset.name} has {shown}, {preset.published} is published: say why"
    )


def test_catalogue_is_up_to_date() -> None:
    assert json.loads(DATA.read_text(encoding="utf-8")) == catalogue(), "run `make catalogue`"
