"""The block diagram of every model: no two things in one place, text that fits, each part there, the same each time."""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from anyformer.descriptions import Diagram, as_picture, as_svg, as_text, diagram
from anyformer.descriptions.diagram.grid import Box, Frame, Label, Stroke, wrapped
from anyformer.descriptions.diagram.svg import CELL, DARK, FONT, LIGHT, SCALE
from anyformer.descriptions.grouping import distinct_layers
from anyformer.errors import UsageError
from anyformer.families import preset
from anyformer.layers import AttentionSpec
from anyformer.spec import ModelSpec, SublayerSpec
from tests.costs.dejavu import pixels
from tests.descriptions.test_card import EVERY
from tests.sample import sampled

every = pytest.mark.parametrize("name", sampled([*EVERY]))
Rectangle = tuple[float, float, float, float]


def rectangle(mark: Box | Frame | Label) -> Rectangle:
    """Left, top, right, bottom; of a sum the cell that it fills."""
    if isinstance(mark, Label):
        return mark.x - 0.4, mark.y - 0.4, mark.x + len(mark.text) - 0.6, mark.y + 0.4
    if not mark.width:
        return mark.x - 0.4, mark.y - 0.4, mark.x + 0.4, mark.y + 0.4
    return mark.x, mark.y, mark.x + mark.width, mark.y + mark.height


def meet(a: Rectangle, b: Rectangle) -> bool:
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


def inside(a: Rectangle, b: Rectangle) -> bool:
    return b[0] < a[0] and a[2] < b[2] and b[1] < a[1] and a[3] < b[3]


def overlaps(drawn: Diagram) -> list[str]:
    """Everything that stands where something else does."""
    solid = [*drawn.boxes, *drawn.labels]
    found = [f"{a} and {b}" for a, b in combinations(solid, 2) if meet(rectangle(a), rectangle(b))]
    for frame in drawn.frames:
        edge = rectangle(frame)
        others = [other for other in (*solid, *drawn.frames) if other is not frame]
        found += [
            f"{frame} and {other}"
            for other in others
            if meet(rectangle(other), edge)
            and not inside(rectangle(other), edge)
            and not inside(edge, rectangle(other))
        ]
    for line in drawn.lines:
        for (ax, ay), (bx, by) in pairwise(line.points):
            assert ax == bx or ay == by, f"{line} is slanted"
            way = (min(ax, bx), min(ay, by), max(ax, bx), max(ay, by))
            for mark in solid:
                left, top, right, bottom = rectangle(mark)
                inner = (left + 0.1, top + 0.1, right - 0.1, bottom - 0.1)
                if meet(way, inner) and not (isinstance(mark, Box) and not mark.width):
                    found.append(f"{line} runs through {mark}")
    return found


@every
def test_nothing_overlaps_and_all_is_on_the_page(name: str) -> None:
    drawn = diagram(EVERY[name])
    assert overlaps(drawn) == []
    for mark in (*drawn.boxes, *drawn.frames, *drawn.labels):
        left, top, right, bottom = rectangle(mark)
        assert left >= 0
        assert top >= 0
        assert right <= drawn.width
        assert bottom <= drawn.height


def test_an_overlap_is_seen() -> None:
    """Guards the guard."""
    box = Box(0, 0, 10, 2, ("one",), "norm")
    assert overlaps(Diagram(30, 9, (box, Box(10, 1, 10, 2, ("two",), "norm"))))
    assert overlaps(Diagram(30, 9, (box, Label(9, 1, "three"))))
    assert overlaps(Diagram(30, 9, (box, Stroke(((5, 9), (5, 0))))))
    assert overlaps(Diagram(30, 9, (box, Frame(5, 1, 20, 7))))
    assert not overlaps(Diagram(30, 9, (box, Stroke(((5, 9), (5, 2))), Box(12, 0, 9, 2, ("two",), "norm"))))


def test_text_fits() -> None:
    for name, spec in EVERY.items():
        drawn = diagram(spec)
        for box in filter(lambda box: box.width, drawn.boxes):
            for i, line in enumerate(box.lines):
                assert len(line) <= box.width - 2, f"{name}: {line}"
                bold = i == 0 and len(box.lines) > 1
                assert pixels(line, FONT, bold=bold) <= box.width * CELL[0] - 4, f"{name}: {line}"
        for label in drawn.labels:
            around = [f for f in drawn.frames if f.x < label.x < f.x + f.width and f.y < label.y < f.y + f.height]
            right = min(f.x + f.width for f in around)
            assert label.x * CELL[0] + pixels(label.text, FONT, bold=False) <= right * CELL[0], f"{name}: {label.text}"


def norms_between(spec: ModelSpec) -> int:
    """How many norms stand in the layers that are drawn, at most: each different layer once."""
    total = 0
    for stack in filter(None, (spec.encoder, spec.stack)):
        for layers in distinct_layers(stack):
            for part in layers.block.nested():
                if isinstance(part, SublayerSpec):
                    maps = [part.norm_in, part.norm_sum]
                    maps += [m for branch in part.branches for m in (branch.norm_in, branch.norm_out)]
                    total += sum(m is not None and "Norm" in m.kind for m in maps)
        total += stack.norm is not None
        total += stack.embedding.norm is not None
    return total


@pytest.mark.parametrize(
    "name", ["gpt2", "gptj-6b", "gpt-neox-20b", "gemma-7b", "olmo2-7b", "transformer-base", "bloom-7b1"]
)
def test_each_part_is_drawn(name: str) -> None:
    spec = preset(name).spec
    kinds = Counter(box.kind for box in diagram(spec).boxes)
    stacks = [stack for stack in (spec.encoder, spec.stack) if stack]
    blocks = [layers.block for stack in stacks for layers in distinct_layers(stack)]
    assert kinds["attention"] == sum(isinstance(p, AttentionSpec) for b in blocks for p in b.nested())
    assert kinds["norm"] == norms_between(spec)
    assert kinds["embedding"] == sum(len(stack.embedding.terms) for stack in stacks)
    assert kinds["head"] == len(spec.heads)
    sums = sum(len(block.sublayers) for block in blocks) + sum(len(stack.embedding.terms) > 1 for stack in stacks)
    assert kinds["sum"] == sums


def test_layers_are_counted() -> None:
    labels = {
        name: [label.text for label in diagram(preset(name)).labels] for name in ("gpt2", "gemma3-27b", "deepseek-v3")
    }
    assert labels == {
        "gpt2": ["× 12"],
        "gemma3-27b": [
            "× 62",
            "10 layers (5, 11, 17, 23 …): RoPE θ",
            "1,000,000, linear scaling, no window",
            "of 1,024",
        ],
        "deepseek-v3": ["× 3, layers 0–2", "× 58, layers 3–60"],
    }


def test_layers_that_differ_in_structure_are_each_drawn_once() -> None:
    """Jamba: Mamba with a feed-forward, Mamba with experts, attention with a feed-forward; 32 layers in all."""
    drawn = diagram(preset("jamba-v0.1"))
    kinds = [box.kind for box in drawn.boxes if box.kind in ("state", "attention", "router", "feed-forward")]
    assert kinds == ["state", "feed-forward", "state", "router", "feed-forward", "attention", "feed-forward"]
    labels = [label.text for label in drawn.labels]
    assert labels == ["12 layers (0, 2, 6, 8 …)", "16 layers (1, 3, 5, 7 …)", "layers 4, 12, 20, 28"]


def test_states_and_convolutions_are_said() -> None:
    """Qwen3-Next: 32 heads of values, each with a state of 128 × 128; its convolution sees four tokens."""
    (box,) = (box for box in diagram(preset("qwen3-next-80b-a3b")).boxes if box.kind == "state")
    assert box.lines[0] == "Gated DeltaNet"
    assert {"convolution of 4", "state 32 × 128 × 128"} <= set(box.lines)
    (short,) = (box for box in diagram(preset("lfm2-1.2b")).boxes if box.kind == "state")
    assert short.lines == ("Short convolution", "convolution of 3")


def test_experts_and_the_shared_one_lead_to_a_sum() -> None:
    """Both ways end in one circle, below that of the residual stream; without a shared expert there is but that one."""
    drawn = diagram(preset("deepseek-v3"))
    routed, shared = (
        next(box for box in drawn.boxes if box.lines[0] == name) for name in ("256 experts", "Shared expert")
    )
    (joined,) = (
        box
        for box in drawn.boxes
        if box.kind == "sum"
        and all(
            any(
                line.points[0] == (way.x + way.width // 2, way.y) and line.points[-1] == (box.x, box.y)
                for line in drawn.lines
            )
            for way in (routed, shared)
        )
    )
    assert joined.y < min(routed.y, shared.y)
    mixtral = diagram(preset("mixtral-8x7b"))
    assert sum(box.kind == "sum" for box in mixtral.boxes) == 2


def test_branches_stand_side_by_side() -> None:
    """GPT-J: attention and feed-forward at one height, on one norm; GPT-2: one above the other."""

    def rows(name: str) -> dict[str, Box]:
        return {box.kind: box for box in diagram(preset(name)).boxes if box.kind in ("attention", "feed-forward")}

    beside, above = rows("gptj-6b"), rows("gpt2")
    assert beside["attention"].x + beside["attention"].width < beside["feed-forward"].x
    assert beside["attention"].y < beside["feed-forward"].y + beside["feed-forward"].height
    assert above["feed-forward"].y + above["feed-forward"].height < above["attention"].y, "the first is below"


def test_what_lies_aside_is_added_to_what_reads_it() -> None:
    """Zamba 2: attention, a feed-forward and a map without ways of their own, then Mamba around all of them."""
    drawn = diagram(preset("zamba2-2.7b"))
    frames = [[box for box in drawn.boxes if inside(rectangle(box), rectangle(frame))] for frame in drawn.frames]
    boxes = next(boxes for boxes in frames if boxes[0].kind == "attention")
    kinds = [box.kind for box in boxes]
    assert kinds == ["attention", "norm", "feed-forward", "map", "sum", "norm", "state", "sum"]
    sums = [(box.x + 1, box.y) for box in boxes if box.kind == "sum"]
    begin = [line.points[0][1] for line in drawn.lines if line.points[-1] in sums]
    assert len(begin) == 2
    assert min(begin) > boxes[0].y, "both begin below attention"


def test_what_stands_on_the_way_around_is_drawn_there() -> None:
    """ZAYA1 scales and shifts the stream that a branch writes to."""
    drawn = diagram(preset("zaya1-8b"))
    on_way = [box for box in named(drawn, "map") if box.x > named(drawn, "attention")[0].x + 20]
    assert len(on_way) == 2
    for box in on_way:
        leaves = next(line for line in drawn.lines if line.points[0] == (box.x + box.width // 2, box.y))
        assert any(each.kind == "sum" and leaves.points[-1] == (each.x + 1, each.y) for each in drawn.boxes)
        assert any(line.points[-1] == (box.x + box.width // 2, box.y + box.height) for line in drawn.lines)


def named(drawn: Diagram, kind: str) -> list[Box]:
    return [box for box in drawn.boxes if box.kind == kind]


def test_the_encoder_leads_to_cross_attention() -> None:
    drawn = diagram(preset("transformer-base"))
    (cross,) = (box for box in drawn.boxes if box.lines[0] == "Cross-attention")
    leads = [line for line in drawn.lines if line.points[-1] == (cross.x, cross.y + 1)]
    (lead,) = leads
    encoder = min(drawn.frames, key=lambda frame: frame.x)
    assert lead.points[0][1] == encoder.y
    assert encoder.x < lead.points[0][0] < encoder.x + encoder.width
    assert lead.arrow


def test_experts_follow_a_router_beside_the_shared_one() -> None:
    boxes = {box.lines[0]: box for box in diagram(preset("deepseek-v3")).boxes}
    assert boxes["Router"].lines[1:] == ("8 of 256 experts", "best 4 of 8 groups")
    assert boxes["256 experts"].y < boxes["Router"].y
    assert boxes["Shared expert"].x > boxes["Router"].x + boxes["Router"].width


@every
def test_the_text_says_what_the_boxes_say(name: str) -> None:
    drawn = diagram(EVERY[name])
    text = as_text(drawn)
    for box in drawn.boxes:
        for line in box.lines:
            assert line in text
    assert all(label.text in text for label in drawn.labels)
    assert max(map(len, text.splitlines())) <= drawn.width + 1
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f]+", text)


@every
def test_the_picture_is_whole_and_the_same_each_time(name: str) -> None:
    drawn = diagram(EVERY[name])
    text = as_svg(drawn, name)
    assert text == as_svg(diagram(EVERY[name]), name)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert root.findtext(f"{space}title") == name
    written = Counter(element.text for element in root.iter(f"{space}text"))
    assert written == Counter(
        [line for box in drawn.boxes if box.width for line in box.lines] + [label.text for label in drawn.labels]
    )
    assert len(list(root.iter(f"{space}circle"))) == sum(not box.width for box in drawn.boxes)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "a picture that asks for something elsewhere"


def test_every_kind_has_a_colour_and_the_ink_can_be_read() -> None:
    """WCAG 2.1: text and what is behind it differ in luminance by 4.5 at least."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    kinds = {box.kind for spec in EVERY.values() for box in diagram(spec).boxes}
    for colours in (LIGHT, DARK):
        assert kinds <= set(colours)
        ink = luminance(colours["ink"])
        for kind in {*kinds, "page", "frame"}:
            ground = luminance(colours[kind])
            assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) >= 4.5, kind


def test_phrases_are_wrapped_between_them() -> None:
    assert wrapped(["a", "bc", "def"], 5) == ["a, bc", "def"]
    assert wrapped(["one two three"], 8) == ["one two", "three"]
    assert wrapped(["unbreakable"], 4) == ["unbr", "eaka", "ble"]


def test_colours_are_written_out() -> None:
    """Not all that draws an SVG knows variables: without one it drew everything in black."""
    drawn = as_svg(diagram(preset("gpt2")))
    assert "var(" not in drawn
    light, dark = drawn.split("@media (prefers-color-scheme: dark)")
    kinds = set(re.findall(r'class="([a-z-]+)"', drawn)) - {"line", "tip", "name", "label"}
    for kind in kinds:
        assert re.search(rf"\.{kind} {{ fill: #[0-9a-f]{{6}};", light), kind
        assert re.search(rf"\.{kind} {{ fill: #[0-9a-f]{{6}};", dark), kind


def test_forms_of_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = diagram(preset("gpt2"))
    assert as_picture(drawn, ".svg", "a").decode() == as_svg(drawn, "a")
    with pytest.raises(UsageError, match=r"\.svg, \.png, \.pdf, not '\.gif'"):
        as_picture(drawn, ".gif")
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    for form in (".png", ".pdf"):
        with pytest.raises(UsageError, match=r"pip install 'anyformer\[pictures\]'"):
            as_picture(drawn, form)


def test_a_png_has_the_colours_of_the_boxes_where_they_stand() -> None:
    """Read back by Pillow: each box's edge is a line around its own colour; the page is white."""
    pytest.importorskip("cairosvg", reason="cairosvg is not installed (the extra pictures)", exc_type=ImportError)
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    drawn = diagram(preset("qwen3-next-80b-a3b"))
    with image.open(io.BytesIO(as_picture(drawn, ".png"))) as opened:
        picture = opened.convert("RGB")
    scale = picture.width / (drawn.width * CELL[0])
    assert scale == pytest.approx(SCALE, rel=0.01)
    for box in drawn.boxes:
        if box.width:
            # Between the edge and the text, three pixels inside.
            at = round((box.x + 0.5) * CELL[0] * scale), round((box.y + box.height / 2) * CELL[1] * scale)
            assert "#{:02x}{:02x}{:02x}".format(*picture.getpixel(at)) == LIGHT[box.kind], box
    assert picture.getpixel((1, 1)) == (255, 255, 255)


def test_a_pdf_is_one_page_of_the_same_shape() -> None:
    pytest.importorskip("cairosvg", reason="cairosvg is not installed (the extra pictures)", exc_type=ImportError)
    drawn = diagram(preset("gpt2"))
    content = as_picture(drawn, ".pdf")
    assert content.startswith(b"%PDF-")
    found = re.search(rb"/MediaBox \[ *0 0 ([\d.]+) ([\d.]+) *\]", content)
    assert found is not None
    width, height = map(float, found.groups())
    assert width / height == pytest.approx(drawn.width * CELL[0] / (drawn.height * CELL[1]), rel=0.01)
