"""One thing of an architecture changed to what another has: what a difference does by itself."""

from __future__ import annotations

from collections.abc import Callable

from anyformer.families.compose import changed, edited
from anyformer.layers import AttentionSpec, EngramSpec, GroupsSpec, RouterSpec, TokensSpec
from anyformer.layers.norm import NormSpec
from anyformer.resizing import cut
from anyformer.spec import BlockSpec, ModelSpec, StackSpec, TableSpec, TermSpec, Vocab
from anyformer.variants import layers
from anyformer.variants.layers import Absent, Impossible, LayerChange, only
from anyformer.variants.parts import is_tied, norms, with_maps

Terms = tuple[TermSpec, ...]
StackChange = Callable[[StackSpec, StackSpec], StackSpec]
Change = Callable[[ModelSpec, ModelSpec], ModelSpec]  # (a, b) → a with this one thing as in b; raises SpecError


def per_stack(change: StackChange, *, own: bool = False) -> Change:
    """What changes both stacks of an encoder–decoder, each after the one of its kind, or after the only one.

    With `own`, an encoder stays as it is where the other model has none.
    """

    def both(a: ModelSpec, b: ModelSpec) -> ModelSpec:
        like = b.encoder or (None if own else b.stack)
        encoder = change(a.encoder, like) if a.encoder and like else a.encoder
        return a.but(stack=change(a.stack, b.stack), encoder=encoder)

    return both


def per_layer(change: LayerChange, *, own: bool = False) -> Change:
    """What changes each layer after one of the other's, whose pattern is fitted to this depth."""

    def stack(a: StackSpec, b: StackSpec) -> StackSpec:
        like, known = cut(b.blocks, len(a.blocks)), dict[tuple[int, int], BlockSpec]()
        blocks, absent, found = [], None, False
        for i, block in enumerate(a.blocks):
            other = like[min(i, len(like) - 1)]
            assert isinstance(other, BlockSpec)
            key = id(block), id(other)
            if key not in known:
                try:
                    known[key] = change(block, other)
                except Absent as error:
                    known[key], absent = block, error
                else:
                    found = True
            blocks.append(known[key])
        if absent is not None and not found:
            raise absent
        return a.but(blocks=tuple(blocks))

    return per_stack(stack, own=own)


def stacks(a: ModelSpec, b: ModelSpec) -> ModelSpec:
    """The decoder without its encoder and without what reads from it."""
    if a.encoder is None or b.encoder is not None:
        raise Impossible("an encoder")

    def alone(block: BlockSpec) -> BlockSpec:
        kept = []
        for sublayer in block.sublayers:
            own = (
                b for b in sublayer.branches if not (isinstance(b.mixer, AttentionSpec) and b.mixer.reads == "memory")
            )
            kept += [sublayer.but(branches=branches)] if (branches := tuple(own)) else []
        return block.but(sublayers=tuple(kept))

    stack = changed(a.stack, AttentionSpec, memory=False)
    model = a.but(encoder=None, stack=stack.but(blocks=tuple(map(alone, stack.blocks))))
    tables = [v for part in (model.stack.embedding, *model.heads) for v in part.nested(TableSpec)]
    return model if len(tables) > 1 and tables[0] in tables[1:] else changed(model, TableSpec, shared=None)


def vocabulary(a: ModelSpec, b: ModelSpec) -> ModelSpec:
    """B's number of ids, in the tables that have as many rows as a has ids."""

    def rows(value: TableSpec) -> TableSpec:
        return value.but(rows=b.vocab_size) if value.rows == a.vocab_size else value

    def tables(stack: StackSpec) -> StackSpec:
        terms = tuple(t.but(table=rows(t.table)) if isinstance(t, TokensSpec) else t for t in stack.embedding.terms)
        return stack.but(embedding=stack.embedding.but(terms=terms))

    def routed(value: RouterSpec) -> RouterSpec:
        return value.but(hashed=Vocab(b.vocab_size)) if value.hashed == a.vocab_size else value

    def found(value: EngramSpec) -> EngramSpec:
        return value.but(vocab=Vocab(b.vocab_size)) if value.vocab == a.vocab_size else value

    heads = tuple(head.but(table=head.table and rows(head.table)) for head in a.heads)
    model = a.but(stack=tables(a.stack), encoder=a.encoder and tables(a.encoder), heads=heads)
    return edited(edited(model, RouterSpec, routed), EngramSpec, found)


def embedding(a: StackSpec, b: StackSpec) -> StackSpec:
    """B's embedding but for its positions and the number of rows."""
    tokens = [_tokens(stack) for stack in (a, b)]
    if any(t.projection or t.table.width for t in tokens) or a.embedding.width or b.embedding.width:
        raise Impossible("a width of its own")  # the head may be as narrow
    ours = tokens[1].but(table=tokens[0].table)
    own = a.embedding.but(terms=tuple(ours if t is tokens[0] else t for t in a.embedding.terms))
    terms = _terms(own.terms, b.embedding.terms, lambda term: isinstance(term, GroupsSpec))
    return a.but(embedding=own.but(terms=terms, norm=b.embedding.norm, masked=b.embedding.masked))


def _tokens(stack: StackSpec) -> TokensSpec:
    found = next((term for term in stack.embedding.terms if isinstance(term, TokensSpec)), None)
    if found is None:
        raise Impossible("a table of tokens")
    return found


def _terms(a: Terms, b: Terms, theirs: Callable[[TermSpec], bool]) -> Terms:
    """A's terms with those of one sort as in b, in b's order."""
    terms, order = [t for t in a if not theirs(t)] + [t for t in b if theirs(t)], [type(t) for t in b]
    return tuple(sorted(terms, key=lambda t: order.index(type(t)) if type(t) in order else len(order)))


def _position_terms(a: StackSpec, b: StackSpec) -> StackSpec:
    ours, theirs = a.embedding, b.embedding
    terms = _terms(ours.terms, theirs.terms, lambda term: not isinstance(term, TokensSpec | GroupsSpec))
    return a.but(embedding=ours.but(terms=terms))


def positions(a: ModelSpec, b: ModelSpec) -> ModelSpec:
    """B's position scheme, in the embedding and in attention."""
    return per_layer(layers.positions)(per_stack(_position_terms)(a, b), b)


def norm(a: StackSpec, b: StackSpec) -> StackSpec:
    """B's one norm wherever a norm of the stream stands in a."""
    theirs, before = only(norms(b)), set(norms(a))
    if not before:
        raise Impossible("norms of the stream")

    def replaced(value: object) -> object:
        return theirs if isinstance(value, NormSpec) and value in before else value

    return edited(a, BlockSpec, lambda block: with_maps(block, replaced)).but(norm=replaced(a.norm))


def placement(a: ModelSpec, b: ModelSpec) -> ModelSpec:
    """A's norms where b has norms, in its layers and at its end."""
    return per_stack(_final_norm)(per_layer(layers.placement)(a, b), b)


def _final_norm(a: StackSpec, b: StackSpec) -> StackSpec:
    if (a.norm is None) == (b.norm is None):
        return a
    return a.but(norm=b.norm and only(norms(a)))


def tying(a: ModelSpec, b: ModelSpec) -> ModelSpec:
    """The head's table the embedding's where b's is, or its own."""
    tied, name = only(is_tied(head, b) for head in b.heads if head.table), "tokens"
    heads = [head for head in a.heads if head.table and head.table.rows == a.vocab_size]
    if not heads:
        raise Impossible("a head over the vocabulary")
    if all(is_tied(head, a) == tied for head in heads):
        return a
    if tied:
        table = _tokens(a.stack).table.but(shared=name)
        model = changed(a, TokensSpec, table=table)
        return model.but(heads=tuple(head.but(table=table) if head in heads else head for head in a.heads))
    if a.encoder is not None:  # the two stacks may go on sharing
        return a.but(heads=tuple(changed(head, TableSpec, shared=None) for head in a.heads))
    return changed(a, TableSpec, shared=None)


def output(a: ModelSpec, b: ModelSpec) -> ModelSpec:
    """B's head but for its table."""
    if len(a.heads) != 1 or len(b.heads) != 1 or a.heads[0].table is None or b.heads[0].table is None or b.ahead:
        raise Impossible("one head each")
    theirs = b.heads[0]
    if theirs.transform != a.heads[0].transform and any(s.embedding.width or _narrow(s) for s in (a.stack, b.stack)):
        raise Impossible("a table of one width")
    fields = {name: getattr(theirs, name) for name in ("name", "pool", "transform", "bias", "scale", "softcap")}
    return a.but(heads=(a.heads[0].but(**fields),), ahead=())


def _narrow(stack: StackSpec) -> bool:
    return any(isinstance(t, TokensSpec) and t.table.width for t in stack.embedding.terms)


def sharing(a: StackSpec, b: StackSpec) -> StackSpec:
    """The layers as one set of weights where b's are, or each with its own."""
    name = only(block.shared for block in b.blocks)
    if name is not None and len(set(a.blocks)) > 1:
        raise Impossible("layers that are all alike")
    return changed(a, BlockSpec, shared=name)


def depth(a: StackSpec, b: StackSpec) -> StackSpec:
    """As many layers as b has, in a's pattern."""
    return a.but(blocks=cut(a.blocks, len(b.blocks)))
