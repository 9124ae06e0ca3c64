"""Schema logs at the receiver: appended, decoded, and named where they disagree with files or another site."""

from __future__ import annotations

from tests.centre import Centre, d1, rows
from tests.landing_maker import SITE_A, SITE_B
from tests.small_files import sealed, source
from tidemark.tsfiles.points.codes import DataType

LOG = b"2,root.sg\n0,root.sg.d1.s,2,2,1,,,-1\n0,root.sg.d2.t,1,2,1,,,-1\n1,root.sg.d2.t\n"


class TestSchema:
    def series(self, centre: Centre) -> dict[str, tuple[str, str, str | None]]:
        return {s: (t, st, c) for s, t, st, c in centre.sql("SELECT series, type, state, clash FROM schema_series")}

    def test_logs_are_appended_and_decoded_as_they_come(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({}, schema=[("schema/mlog.txt", 1, 0, LOG[:40])])
        sender.land({}, schema=[("schema/mlog.txt", 1, 40, LOG[40:60]), ("schema/mlog.txt", 1, 60, LOG[60:])])
        assert centre.load().exit_code == 0
        assert self.series(centre) == {"root.sg.d1.s": ("INT64", "live", None), "root.sg.d2.t": ("INT32", "deleted", None)}
        assert [p.read_bytes() for p in centre.root.glob("schema/*/schema/mlog.txt.1")] == [LOG]
        # The log began anew at the site.
        sender.land({}, schema=[("schema/mlog.txt", 2, 0, b"0,root.sg.d3.u,0,0,1,,,-1\n")])
        centre.load()
        assert self.series(centre)["root.sg.d3.u"] == ("BOOLEAN", "live", None)
        assert centre.files(f"schema/{SITE_A}/schema") == ["mlog.txt.1", "mlog.txt.2"]

    def test_a_gap_in_a_log_is_named_and_stops_no_data(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(1): d1((1, 10))}, schema=[("schema/mlog.txt", 1, 40, LOG[40:])])
        result = centre.load()
        assert result.loaded == 1 and centre.rows() == rows((1, 10))
        assert [(t.what, "bytes 0 to 40" in t.reason) for t in result.troubles] == [("schema", True)]
        sender.land({}, schema=[("schema/mlog.txt", 1, 0, LOG)])
        assert centre.load().troubles == ()
        assert "root.sg.d2.t" in self.series(centre)

    def test_a_log_and_a_file_that_disagree_are_named(self, centre: Centre) -> None:
        sender = centre.sender()
        file = sealed({"root.sg.d1": {"s": [(1, 10)]}}, data_type=DataType.INT32)
        sender.land({source(1): file}, schema=[("schema/mlog.txt", 1, 0, LOG)])
        result = centre.load()
        assert result.exit_code == 0 and result.loaded == 1
        assert result.clashes == (f"root.sg.d1.s: INT64 by schema/mlog.txt, but INT32 in {source(1)}",)
        assert self.series(centre)["root.sg.d1.s"] == ("INT64", "live", f"INT32 in {source(1)}")
        sender.land({source(2): sealed({"root.sg.d1": {"s": [(2, 10)]}})})
        assert centre.load().clashes == ()

    def test_two_files_of_one_landing_that_disagree_are_named(self, centre: Centre) -> None:
        older = sealed({"root.sg.d1": {"s": [(1, 10)]}}, data_type=DataType.INT32)
        centre.sender().land({source(1): older, source(2): d1((2, 20))})
        assert centre.load().clashes == (f"root.sg.d1.s: INT64 by {source(2)}, but INT32 in {source(1)}",)

    def test_two_sites_that_disagree_are_named(self, centre: Centre) -> None:
        centre.sender().land({}, schema=[("schema/mlog.txt", 1, 0, LOG)])
        text = LOG.replace(b"d1.s,2", b"d1.s,5")
        centre.sender(SITE_B, name="plant2").land({}, schema=[("schema/mlog.txt", 1, 0, text)])
        clashes = centre.load().clashes
        assert len(clashes) == 2 and all(c.startswith("root.sg.d1.s: ") for c in clashes)

    def test_files_declare_series_where_no_log_does(self, centre: Centre) -> None:
        centre.sender().land({source(1): d1((1, 10))})
        centre.load()
        assert centre.sql("SELECT series, database_name, source FROM schema_series") == [
            ("root.sg.d1.s", "root.sg", source(1))
        ]
