"""The parts of a stream of requests: its tables, and what reads, stores, applies and records its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakegate.config import Erase, Mutate, StreamSpec
from lakegate.streams.interfaces import StreamContext
from lakegate.streams.requests.erased_keys import Erasures, erasures_of
from lakegate.streams.requests.ingest import Storing
from lakegate.streams.requests.outcomes import Settling
from lakegate.streams.requests.resolver import KeptRequests, RequestReader, meaning_of
from lakegate.streams.requests.rules import Meaning
from lakegate.streams.requests.standing import RequestTables
from lakegate.streams.requests.table import RequestTable
from lakegate.streams.requests.visibility import Deciding, RequestsSnapshot
from lakegate.streams.requests.watermark import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects that the batches and the sweeps of one stream share."""

    context: StreamContext
    spec: StreamSpec
    kind: Mutate | Erase
    meaning: Meaning
    requests: RequestTable
    storing: Storing
    reader: RequestReader
    progress: Progress
    settling: Settling
    deciding: Deciding
    """The erasures that decide on the stream's requests."""
    standing: RequestTables

    @staticmethod
    def of(spec: StreamSpec, context: StreamContext) -> Parts:
        """Returns the parts of a `mutate` or `erase` stream."""
        kind = spec.kind
        if not isinstance(kind, Mutate | Erase):
            raise TypeError(f"{spec.name} is not a stream of requests")
        meaning = meaning_of(kind)
        requests = RequestTable(context.session, context.log, context.requests_of(spec))
        return Parts(
            context=context,
            spec=spec,
            kind=kind,
            meaning=meaning,
            requests=requests,
            storing=Storing(context, spec, requests, meaning),
            reader=RequestReader(context, requests, meaning, list(kind.set) if isinstance(kind, Mutate) else []),
            progress=Progress(context, spec),
            settling=Settling(context, requests),
            deciding=Deciding(context, erasures_of(context, kind) if isinstance(kind, Mutate) else ()),
            standing=RequestTables(context, spec.name),
        )

    @property
    def sets_values(self) -> bool:
        """True if requests may write values of erased persons into rows."""
        return isinstance(self.kind, Mutate) and bool(self.kind.set)

    def erasures(self, look: RequestsSnapshot | None = None) -> Erasures | None:
        """Returns the erased keys to which rows must not be moved, as of a look; None if no request could do so."""
        if not isinstance(self.kind, Mutate) or not self.sets_values:
            return None
        if look is None:
            return Erasures(self.context, self.kind)
        return Erasures(self.context, self.kind, unrecorded=look.unrecorded, coming=look.coming)

    def kept(self, keys: Sequence[str], erasures: Erasures | None, before: KeptRequests | None = None) -> KeptRequests:
        """Returns the requests kept for the keys of a batch. `before` is reused where erasures have no effect on them."""
        if before is not None and self.reader.is_kept_despite_erasures:
            return before
        last = self.progress.last()
        return self.reader.kept(keys, erasures, has_kept=last is None or last.kept > 0)
