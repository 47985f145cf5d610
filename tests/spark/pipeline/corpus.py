"""Nasty files, and what must come of each: which rows are stored, what is rescued, what is rejected, on which line."""

# ruff: noqa: E501 (one case a line)
from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Mapping
from datetime import datetime, time
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

JSON_SCHEMA = (
    "id STRING, n LONG, x DOUBLE, b BOOLEAN, t TIMESTAMP, d DECIMAL(10,2), s STRUCT<a: LONG>, l ARRAY<LONG>, "
    "m MAP<STRING, LONG>, `a'b` TIMESTAMP"
)
CSV_SCHEMA = "id STRING, n LONG, t TIMESTAMP, d DECIMAL(10,2), note STRING"
PARQUET_SCHEMA = "id STRING, n LONG, x DOUBLE, note STRING, t TIMESTAMP, l ARRAY<STRUCT<a: LONG>>"


class Case(msgspec.Struct, frozen=True):
    """A file. ``stored`` are the records by their ids, as far as they matter; ``rejected`` are lines and reasons."""

    name: str
    what: str
    content: bytes
    stored: Mapping[str, Mapping[str, Any]] = {}
    rejected: tuple[tuple[int, str], ...] = ()


def zstd(data: bytes) -> bytes:
    """Return compressed bytes."""
    compressed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return compressed


def parquet(options: Mapping[str, Any] | None = None, **columns: Any) -> bytes:
    """Return a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **(options or {}))
    return sink.getvalue()


def _changed_page() -> bytes:
    """Return a Parquet file with the checksums that Spark writes, in which a letter was changed."""
    options = {"write_page_checksum": True, "compression": "none", "use_dictionary": False, "write_statistics": False}
    return parquet(options, id=["fp1"]).replace(b"fp1", b"fp2", 1)


def _flipped(data: bytes) -> bytes:
    """Return data in which the bit in the middle is another one."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def parquet_of(columns: list[tuple[str, list[Any]]]) -> bytes:
    """Return a Parquet file whose columns may have the same name."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(each) for _, each in columns], names=[n for n, _ in columns]), sink)
    return sink.getvalue()


def _rescued(**fields: str) -> dict[str, Any]:
    return {"_rescued": "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"}


_MANY = b"".join(b'{"id":"many-%d","n":%d}\n' % (n, n) for n in range(3000))

JSON = [
    Case("plain.jsonl", "one object a line", b'{"id":"p1","n":1}\n{"id":"p2"}\n', {"p1": {"n": 1}, "p2": {}}),
    Case("no-end.json", "no line feed at the end", b'{"id":"e1"}\n{"id":"e2"}', {"e1": {}, "e2": {}}),
    Case("crlf.json", "lines that end with CR LF", b'{"id":"c1"}\r\n{"id":"c2"}\r\n', {"c1": {}, "c2": {}}),
    Case("blank.json", "blank lines", b'\n{"id":"b1"}\n  \n\n{"id":"b2"}\n', {"b1": {}, "b2": {}}),
    Case("bom.json", "a byte order mark", b'\xef\xbb\xbf{"id":"bom1"}\n', {"bom1": {}}),
    Case("utf16.json", "UTF-16 with its mark", '{"id":"u16 ä"}\n'.encode("utf-16"), {"u16 ä": {}}),
    Case("utf32.json", "UTF-32 with its mark", '{"id":"u32"}\n'.encode("utf-32"), {"u32": {}}),
    Case("empty.json", "no bytes at all", b""),
    Case("spaces.json", "spaces alone", b"  \n \n"),
    Case("spaced.json", "spaces around keys", b'{ "id" : "sp1" , "n" : 2 }\n', {"sp1": {"n": 2}}),
    Case("order.json", "keys in another order", b'{"n":3,"id":"o1"}\n', {"o1": {"n": 3}}),
    Case("null.json", "a null field", b'{"id":"nu1","n":null}\n', {"nu1": {}}),
    Case("unknown.json", "an unknown field", b'{"id":"k1","new":1.10}\n', {"k1": _rescued(new="1.10")}),
    Case("later.json", "a field that later rows add", b'{"id":"la1"}\n{"id":"la2","more":[1,{"a":null}]}\n',
         {"la1": {}, "la2": _rescued(more='[1,{\\"a\\":null}]'.replace("\\", ""))}),
    Case("nested.json", "an unknown field inside", b'{"id":"ne1","s":{"a":1,"z":2}}\n',
         {"ne1": {"s": {"a": 1}, **_rescued(s='{"a":1,"z":2}')}}),
    Case("case.json", "a key in another case", b'{"id":"ca1","N":5}\n', {"ca1": _rescued(N="5")}),
    Case("text.json", "text for a number", b'{"id":"t1","n":"12 EUR"}\n', {"t1": _rescued(n='"12 EUR"')}),
    Case("fraction.json", "a fraction for a whole number", b'{"id":"f1","n":7.5}\n', {"f1": _rescued(n="7.5")}),
    Case("large.json", "a number too large", b'{"id":"l1","n":99999999999999999999}\n',
         {"l1": _rescued(n="99999999999999999999")}),
    Case("largest.json", "the largest numbers", b'{"id":"l2","n":9223372036854775807}\n',
         {"l2": {"n": 9223372036854775807}}),
    Case("truth.json", "a number for true", b'{"id":"tr1","b":1}\n', {"tr1": _rescued(b="1")}),
    Case("time.json", "a time that is none", b'{"id":"ti1","t":"yesterday"}\n', {"ti1": _rescued(t='"yesterday"')}),
    Case("micros.json", "microseconds", b'{"id":"mi1","t":"2026-01-01T00:00:00.123456Z"}\n',
         {"mi1": {"t": "2026-01-01T00:00:00.123456Z"}}),
    Case("two-wrong.json", "two fields that do not fit", b'{"id":"tw1","n":"x","t":"y"}\n',
         {"tw1": _rescued(n='"x"', t='"y"')}),
    Case("number-id.json", "a number as the id", b'{"id":12345678901234567890}\n', {"12345678901234567890": {}}),
    Case("array-text.json", "an object for a list", b'{"id":"ar1","l":{"a":1}}\n', {"ar1": _rescued(l='{"a":1}')}),
    Case("decimal.json", "a decimal", b'{"id":"de1","d":12.50}\n', {"de1": {"d": 12.5}}),
    Case("unicode.json", "escapes and emoji", b'{"id":"\\u00e4\\ud83d\\ude00","m":{"a\\nb":1}}\n',
         {"ä\U0001f600": {"m": {"a\nb": 1}}}),
    Case("broken.json", "a broken line among others", b'{"id":"br1"}\nnot json\n{"id":"br2"}\n',
         {"br1": {}, "br2": {}}, ((2, "is not JSON"),)),
    Case("cut.json", "a last line that is cut", b'{"id":"cu1"}\n{"id":"cu2","n"', {"cu1": {}}, ((2, "is not JSON"),)),
    Case("twice.json", "a key twice", b'{"id":"tk1","id":"tk2"}\n', {}, ((1, "'id' is there twice"),)),
    Case("twice-inside.json", "a key twice inside", b'{"id":"ti","s":{"a":1,"a":2}}\n', {}, ((1, "'a' is there twice"),)),
    Case("second.json", "a second object on the line", b'{"id":"se1"}{"id":"se2"}\n', {}, ((1, "more on the line"),)),
    Case("garbage.json", "garbage behind the object", b'{"id":"ga1"} garbage\n', {}, ((1, "more on the line"),)),
    Case("quotes.json", "single quotes", b"{'id':'sq'}\n", {}, ((1, "is not JSON"),)),
    Case("nan.json", "NaN for a number", b'{"id":"nan1","x":NaN}\n', {}, ((1, "NaN is no number"),)),
    Case("nan-text.json", "NaN as text", b'{"id":"nan2","x":"NaN"}\n', {"nan2": {"x": "NaN"}}),
    Case("scalars.json", "values that are no objects", b'null\n5\n"x"\ntrue\n', {},
         ((1, "not an object"), (2, "not an object"), (3, "not an object"), (4, "not an object"))),
    Case("no-id.json", "no id", b'{"n":1}\n{"id":null,"n":2}\n{"id":""}\n', {},
         ((1, "id is missing"), (2, "id is missing"), (3, "id is missing"))),
    Case("long-id.json", "an id that is too long", b'{"id":"%s"}\n' % (b"i" * 300), {}, ((1, "more than 255 bytes"),)),
    Case("not-utf8.json", "bytes that are not UTF-8", b'{"id":"nu\xff8"}\n{"id":"utf"}\n', {"utf": {}}, ((1, "not UTF-8"),)),
    Case("control.json", "a control character in a text", b'{"id":"a\x01b"}\n', {}, ((1, "is not JSON"),)),
    Case("deep.json", "nesting without end", b'{"id":"deep","m":' + b"[" * 100_000 + b"}\n", {}, ((1, "nested too deeply"),)),
    Case("list.json", "a list on one line", b'[{"id":"li1"},{"id":"li2"}]\n', {"li1": {}, "li2": {}}),
    Case("pretty.json", "a list over lines", b'[\n  {"id":"pr1",\n   "n":1},\n  {"id":"pr2"}\n]\n', {"pr1": {"n": 1}, "pr2": {}}),
    Case("pretty-object.json", "objects over lines", b'{\n "id": "po1"\n}\n{\n "id": "po2"\n}\n', {"po1": {}, "po2": {}}),
    Case("pretty-cut.json", "a list that is cut", b'[\n{"id":"pc1"},\n{"id":', {"pc1": {}}, ((3, "is not JSON"),)),
    Case("pretty-open.json", "a list without its end", b'[\n{"id":"pe1"}\n', {"pe1": {}}, ((2, "cut short"),)),
    Case("pretty-odd.json", "a list with one odd element", b'[\n{"id":"pd1"},\n5,\n{"id":"pd2","n":"x"}\n]',
         {"pd1": {}, "pd2": _rescued(n='"x"')}, ((3, "not an object"),)),
    Case("many.jsonl", "three thousand rows", _MANY, {f"many-{n}": {"n": n} for n in range(3000)}),
    Case("gzip.jsonl.gz", "gzip", gzip.compress(b'{"id":"gz1"}\n'), {"gz1": {}}),
    Case("gzip-unnamed.json", "gzip that its name does not tell", gzip.compress(b'{"id":"gz2"}\n'), {"gz2": {}}),
    Case("bzip.json.bz2", "bzip2", bz2.compress(b'{"id":"bz1"}\n'), {"bz1": {}}),
    Case("xz.ndjson.xz", "xz", lzma.compress(b'{"id":"xz1"}\n'), {"xz1": {}}),
    Case("zstd.jsonl.zst", "zstd", zstd(b'{"id":"zs1"}\n'), {"zs1": {}}),
    Case("cut.jsonl.gz", "gzip that is cut", gzip.compress(_MANY.replace(b"many", b"cutmany"))[:-20], {},
         ((-1, "cannot be read"),)),
    Case("surrogate.json", "half of a surrogate pair", b'{"id":"\\ud800"}\n{"id":"su2","z":"\\udfff"}\n{"id":"su3"}\n', {"su3": {}},
         ((1, "half of a surrogate pair"), (2, "half of a surrogate pair"))),
    Case("written.json", "a number for a text", b'{"id":1.10}\n{"id":1e400}\n', {"1.10": {}, "1e400": {}}),
    Case("beyond.json", "numbers beyond what a double holds", b'{"id":"be1","x":1e999}\n{"id":"be2","x":-1e-999}\n',
         {"be1": _rescued(x="1e999"), "be2": {"x": -0.0}}),
    Case("digits.json", "a number of 5,000 digits", b'{"id":"di1","n":%s}\n' % (b"9" * 5000), {}, ((1, "more than 1,000 digits"),)),
    Case("nul.json", "NUL bytes", b'{"id":"nl1"}\n\0\0\n{"id":"nl2"}\n', {"nl1": {}, "nl2": {}}, ((2, "is not JSON"),)),
    Case("returns.json", "lines that end with CR alone", b'{"id":"rt1"}\r{"id":"rt2"}\r', {}, ((1, "more on the line"),)),
    Case("separator.json", "a line separator of Unicode in a text", '{"id":"a\u2028b"}\n'.encode(), {"a\u2028b": {}}),
    Case("utf16-cut.json", "UTF-16 that is cut", b"\xff\xfe" + '{"id":"uc"}\n'.encode("utf-16-le") + b"{", {}, ((0, "is not utf-16-le"),)),
    Case("years.json", "years 1, 9999 and 10000", b'{"id":"y1","t":"0001-01-01T00:00:00Z"}\n{"id":"y2","t":"9999-12-31T23:59:59.999999Z"}\n{"id":"y3","t":"+10000-01-01T00:00:00Z"}\n',
         {"y1": {"t": "0001-01-01T00:00:00.000000Z"}, "y2": {"t": "9999-12-31T23:59:59.999999Z"}, "y3": {"t": "+10000-01-01T00:00:00.000000Z"}}),
    Case("quote.json", "a time that is none, in a column with a quote in its name", b'{"id":"qu1","a\'b":"x"}\n', {"qu1": _rescued(**{"a'b": '"x"'})}),
    Case("row.json.gz", "gzip of a line that is much too large", gzip.compress(b'{"id":"ro1","z":"%s"}\n{"id":"ro2"}\n' % (b"x" * (17 << 20)), 1), {"ro2": {}},
         ((1, "the first 8,388,608 are kept"),)),
    Case("members.json.gz", "gzip of two members", gzip.compress(b'{"id":"me1"}\n') + gzip.compress(b'{"id":"me2"}\n'), {"me1": {}, "me2": {}}),
    Case("behind.json.gz", "gzip with junk behind it", gzip.compress(b'{"id":"bh1"}\n') + b"junk", {"bh1": {}}, ((2, "cannot be read"),)),
    Case("flipped.json.gz", "gzip in which a digit was changed", gzip.compress(b'{"id":"fl1","n":1}\n', 0).replace(b":1}", b":9}"), {}, ((0, "CRC check failed"),)),
    Case("second.json.bz2", "bzip2 whose second stream is damaged", bz2.compress(b'{"id":"sb1"}\n') + bz2.compress(b'{"id":"sb2"}\n').replace(b"1AY&SY", b"1AY-SY"), {},
         ((0, "Invalid data stream"),)),
    Case("nested.json.gz", "gzip of gzip", gzip.compress(gzip.compress(b'{"id":"ng1"}\n', mtime=0), mtime=0), {}, ((1, "not UTF-8"),)),
    Case("nothing.json.gz", "gzip of nothing", gzip.compress(b"")),
    Case("frames.json.zst", "zstd of two frames", zstd(b'{"id":"fr1"}\n') + zstd(b'{"id":"fr2"}\n'), {"fr1": {}, "fr2": {}}),
    Case("p%41 + #.json", "a percent sign, a plus and a hash in the name", b'{"id":"pc"}\n', {"pc": {}}),
    Case("a\nb\tc:d.json", "a line feed, a tab and a colon in the name", b'{"id":"lf"}\n', {"lf": {}}),
    Case("e\u0301\"'.json", "a combining accent and quotes in the name", b'{"id":"co"}\n', {"co": {}}),
    Case("table.orc", "ORC by its name", b"ORC", {}, ((0, "is orc by its name"),)),
    Case("table.avro", "Avro by its name", b"Obj\x01", {}, ((0, "is avro by its name"),)),
    Case("table.csv", "CSV among JSON", b"id,n\na,1\n", {}, ((0, "is csv by its name"),)),
    Case("boms.json", "byte order marks where files were joined", b'\xef\xbb\xbf{"id":"bj1"}\n\xef\xbb\xbf{"id":"bj2"}\n', {"bj1": {}}, ((2, "is not JSON"),)),
    Case("utf16-unmarked.json", "UTF-16 without its mark", '{"id":"uu1"}\n'.encode("utf-16-le"), {}, ((1, "is not JSON"), (2, "is not JSON"))),
    Case("escaped.json", "a key that is escaped, and one that is so the second time", b'{"\\u0069d":"ek1"}\n{"id":"ek2","\\u0069d":"ek3"}\n', {"ek1": {}},
         ((2, "'id' is there twice"),)),
    Case("comma.json", "a list with a comma behind its last element", b'[{"id":"tc1"},]\n', {"tc1": {}}, ((1, "is not JSON"),)),
    Case("comment.json", "a comment", b'// orders\n{"id":"cm1"}\n', {"cm1": {}}, ((1, "is not JSON"),)),
    Case("exponent.json", "a whole number with an exponent", b'{"id":"ex1","n":1e2}\n', {"ex1": _rescued(n="1e2")}),
    Case("cents.json", "a decimal with a digit more, as a number and as a text", b'{"id":"ce1","d":1.239}\n{"id":"ce2","d":"1.239"}\n{"id":"ce3","d":1.230}\n',
         {"ce1": _rescued(d="1.239"), "ce2": _rescued(d='"1.239"'), "ce3": {"d": 1.23}}),
    Case("comma-decimal.json", "a decimal with a comma", b'{"id":"cd1","d":"12,50"}\n', {"cd1": _rescued(d='"12,50"')}),
    Case("nanos.json", "nanoseconds", b'{"id":"na1","t":"2026-01-01T00:00:00.123456789Z"}\n', {"na1": _rescued(t='"2026-01-01T00:00:00.123456789Z"')}),
    Case("clock.json", "a time of day for a time", b'{"id":"cl1","t":"12:30"}\n', {"cl1": _rescued(t='"12:30"')}),
    Case("map.json", "a fraction in a map of whole numbers", b'{"id":"mp1","m":{"a":1,"b":2.5}}\n', {"mp1": _rescued(m='{"a":1,"b":2.5}')}),
    Case("binary.json", "bytes of a picture", b"\x89PNG\r\n\x1a\n\x00\x00\x00", {}, ((1, "not UTF-8"), (2, "is not JSON"), (3, "is not JSON"))),
]  # fmt: skip

CSV = [
    Case("plain.csv", "a header and rows", b"id,n\np1,1\np2,\n", {"p1": {"n": 1}, "p2": {}}),
    Case("order.csv", "a header in another order", b"n,note,id\n7,x,o1\n", {"o1": {"n": 7, "note": "x"}}),
    Case("case.csv", "a header in capitals", b"ID,N\nca1,2\n", {"ca1": {"n": 2}}),
    Case("more.csv", "a column more", b"id,n,colour\nm1,1,red\nm2,2,\n", {"m1": {"n": 1, **_rescued(colour='"red"')}, "m2": {"n": 2}}),
    Case("fewer.csv", "columns that are missing", b"id\nf1\n", {"f1": {}}),
    Case("quoted.csv", "quotes, commas and line breaks", b'id,note\nq1,"a, ""b""\nc"\nq2,x\n',
         {"q1": {"note": 'a, "b"\nc'}, "q2": {"note": "x"}}),
    Case("crlf.csv", "CR LF at line ends and in a cell", b'id,note\r\ncr1,"a\r\nb"\r\n', {"cr1": {"note": "a\r\nb"}}),
    Case("bom.csv", "a byte order mark", b"\xef\xbb\xbfid,n\nbom1,1\n", {"bom1": {"n": 1}}),
    Case("short.csv", "too few and too many cells", b"id,n\ns1\ns2,1,2\ns3,3\n", {"s3": {"n": 3}}, ((2, "has 1 cells"), (3, "has 3 cells"))),
    Case("open.csv", "a quote that is never closed", b'id,note\nop1,x\nop2,"y\nop3,z\n', {"op1": {"note": "x"}},
         ((3, "never closed"),)),
    Case("behind.csv", "text behind a closing quote", b'id,note\n"be1"x,y\nbe2,z\n', {"be2": {"note": "z"}}, ((2, "follows a closing quote"),)),
    Case("type.csv", "cells of another type", b"id,n,t,d\nt1,7.5,yesterday,1.239\nt2,12 EUR,,1.25\n",
         {"t1": _rescued(d='"1.239"', n='"7.5"', t='"yesterday"'), "t2": {"d": 1.25, **_rescued(n='"12 EUR"')}}),
    Case("zeros.csv", "an id with zeros before it", b"id,n\n007,1\n", {"007": {"n": 1}}),
    Case("no-id.csv", "no id", b"id,n\n,1\n", {}, ((2, "id is missing"),)),
    Case("no-header.csv", "another header", b"a,b\nx,1\n", {}, ((2, "none of the columns"),)),
    Case("twice.csv", "a column twice", b"id,id\nx,y\n", {}, ((2, "names 'id' twice"),)),
    Case("not-utf8.csv", "bytes that are not UTF-8", b"id,note\nnu1,\xff\nnu2,x\n", {"nu2": {"note": "x"}}, ((2, "not UTF-8"),)),
    Case("blank.csv", "blank lines", b"id,n\n\nbl1,1\n\n", {"bl1": {"n": 1}}),
    Case("empty.csv", "no bytes at all", b""),
    Case("header-only.csv", "a header alone", b"id,n\n"),
    Case("large.csv", "a cell of 200,000 characters", b"id,note\nla1," + b"x" * 200_000 + b"\n", {"la1": {"note": "x" * 200_000}}),
    Case("micros.csv", "microseconds", b"id,t\nmi1,2026-01-01T00:00:00.123456Z\n", {"mi1": {"t": "2026-01-01T00:00:00.123456Z"}}),
    Case("nul.csv", "NUL bytes", b"id,note\nnl1,a\0b\n", {"nl1": {"note": "a\0b"}}),
    Case("returns.csv", "lines that end with CR alone", b"id,n\rrt1,1\r", {}, ((1, "is not CSV"),)),
    Case("semicolon.csv", "another separator", b"id;n\nse1;1\n", {}, ((2, "none of the columns"),)),
    Case("wide.csv", "5,000 columns", b"id" + b"".join(b",c%d" % n for n in range(4999)) + b"\nwi1,red" + b"," * 4998 + b"\n", {"wi1": _rescued(c0='"red"')}),
    Case("header-open.csv", "a header without its line feed", b"id,n"),
    Case("zstd.csv.zst", "zstd", zstd(b"id,n\nzs1,1\n"), {"zs1": {"n": 1}}),
    Case("spaces.csv", "spaces around the names of a header", b"id , n\nsh1,5\n", {"sh1": {"n": 5}}),
    Case("utf16.csv", "UTF-16 with its mark, as Excel writes", "id,n\nue1,1\n".encode("utf-16"), {"ue1": {"n": 1}}),
    Case("sep.csv", "a first line for Excel", b"sep=,\nid,n\nsx1,1\n", {}, ((2, "none of the columns"), (3, "none of the columns"))),
    Case("unnamed.csv", "two columns without a name", b"id,n,,\nun1,1,,\n", {}, ((2, "names '' twice"),)),
    Case("flipped.csv.xz", "xz in which a bit was changed", _flipped(lzma.compress(b"id,n\nfx1,1\n")), {}, ((0, "cannot be read"),)),
    Case("nanos.csv", "nanoseconds", b"id,t\nna1,2026-01-01T00:00:00.123456789Z\n", {"na1": _rescued(t='"2026-01-01T00:00:00.123456789Z"')}),
    Case("clock.csv", "a time of day for a time", b"id,t\ncl1,12:30\n", {"cl1": _rescued(t='"12:30"')}),
    Case("joined.csv", "files that were joined, with their headers", b"id,n\njo1,1\nid,n\njo2,2\n", {"jo1": {"n": 1}, "jo2": {"n": 2}}, ((3, "is the header once more"),)),
    Case("lines.jsonl", "JSON among CSV", b'{"id":"x"}\n', {}, ((0, "is json by its name"),)),
]  # fmt: skip

PARQUET = [
    Case("plain.parquet", "the columns of the schema", parquet(id=["p1", "p2"], n=[1, None], x=[0.5, None], note=["a", None]),
         {"p1": {"n": 1, "x": 0.5, "note": "a"}, "p2": {}}),
    Case("narrow.parquet", "narrower numbers", parquet(id=["na1"], n=pa.array([5], pa.int32())), {"na1": {"n": 5}}),
    Case("double.parquet", "doubles for whole numbers", parquet(id=["d1", "d2"], n=[7.0, 7.5]),
         {"d1": {"n": 7}, "d2": _rescued(n="7.5")}),
    Case("text.parquet", "text for numbers", parquet(id=["t1"], n=["12 EUR"]), {"t1": _rescued(n='"12 EUR"')}),
    Case("number.parquet", "numbers for text", parquet(id=["nt1"], note=[5]), {"nt1": _rescued(note="5")}),
    Case("more.parquet", "a column more", parquet(id=["m1"], colour=["red"]), {"m1": _rescued(colour='"red"')}),
    Case("order.parquet", "another order", parquet(n=[3], id=["o1"]), {"o1": {"n": 3}}),
    Case("time.parquet", "a time for a number", parquet(id=["ti1"], n=[datetime(2026, 1, 1)]),  # noqa: DTZ001
         {"ti1": _rescued(n='"2026-01-01T00:00:00"')}),
    Case("no-id.parquet", "no id", parquet(id=[None, "i1"], n=[1, 2]), {"i1": {"n": 2}}, ((0, "id is missing"),)),
    Case("micros.parquet", "microseconds, with a zone and without", parquet(id=["mc1"], t=pa.array([1767225600123456], pa.timestamp("us", "Europe/Berlin"))),
         {"mc1": {"t": "2026-01-01T00:00:00.123456Z"}}),
    Case("nanos.parquet", "nanoseconds that are no microseconds", parquet(id=["ns1", "ns2"], t=pa.array([1767225600123456000, 1767225600123456789], pa.timestamp("ns"))),
         {"ns1": {"t": "2026-01-01T00:00:00.123456Z"}, "ns2": _rescued(t='"2026-01-01 00:00:00.123456789"')}),
    Case("nested.parquet", "a list of structs", parquet(id=["ne1"], l=[[{"a": 1}, None, {"a": None}]]), {"ne1": {"l": [{"a": 1}, None, {}]}}),
    Case("nested-more.parquet", "a struct with a field more", parquet(id=["nm1"], l=[[{"a": 1, "z": 2}]]), {"nm1": _rescued(l='[{"a":1,"z":2}]')}),
    Case("twice.parquet", "a column twice", parquet_of([("id", ["tw"]), ("n", [1]), ("n", [2])]), {}, ((0, "'n' is there twice"),)),
    Case("case.parquet", "names in capitals", parquet(ID=["ca1"], N=[1]), {"ca1": {"n": 1}}),
    Case("cases.parquet", "names that differ in their case alone", parquet(id=["cs1"], n=[1], N=[2]), {"cs1": {"n": 1, **_rescued(N="2")}}),
    Case("years.parquet", "years 1 and 9999", parquet(id=["y1", "y2"], t=pa.array([-62135596800, 253402300799], pa.timestamp("s", "UTC"))),
         {"y1": {"t": "0001-01-01T00:00:00.000000Z"}, "y2": {"t": "9999-12-31T23:59:59.000000Z"}}),
    Case("categories.parquet", "categoricals for text", parquet(id=pa.array(["ct1"]).dictionary_encode(), note=pa.array(["red"]).dictionary_encode()), {"ct1": {"note": "red"}}),
    Case("views.parquet", "string views for text", parquet(id=pa.array(["sv1"], pa.string_view())), {"sv1": {}}),
    Case("int96.parquet", "times of 96 bits", parquet({"use_deprecated_int96_timestamps": True}, id=["i96"], t=pa.array([1767225600123456], pa.timestamp("us"))),
         {"i96": {"t": "2026-01-01T00:00:00.123456Z"}}),
    Case("truth.parquet", "a truth value and a time of day for numbers", parquet(id=["tv1"], n=[True], x=[time(1, 2)]), {"tv1": _rescued(n="true", x='"01:02:00"')}),
    Case("unsigned.parquet", "an unsigned number that is too large", parquet(id=["us1"], n=pa.array([2**63], pa.uint64())), {"us1": _rescued(n="9223372036854775808")}),
    Case("nan.parquet", "NaN in a column more", parquet(id=["nn1"], more=[float("nan")]), {"nn1": _rescued(more='"NaN"')}),
    Case("polars.parquet", "a list of structs with a field more, as polars writes it", parquet(id=["pl1"], l=pa.array([[{"a": 1, "z": 2}]], pa.large_list(pa.struct([("a", pa.int64()), ("z", pa.int64())])))),
         {"pl1": _rescued(l='[{"a":1,"z":2}]')}),
    Case("flipped.parquet", "a page in which a letter was changed", _changed_page(), {}, ((0, "CRC checksum verification failed"),)),
    Case("none.parquet", "no rows", parquet(id=pa.array([], pa.string()))),
    Case("cut.parquet", "a file that is cut", parquet(id=["c1"])[:-30], {}, ((0, "cannot be read"),)),
    Case("empty.parquet", "no bytes at all", b""),
]  # fmt: skip

ALL = {"json": JSON, "csv": CSV, "parquet": PARQUET}


INTRO = """\
{count} files that a test sends through a pipeline, with what must come of each. A row with a field that the schema has no place for keeps
the text of that field in `_rescued`. What is rejected is in the log `rejected.NAME`, with its text, file, line and reason.
"""


def page() -> str:
    """Return the page of the documentation: every file, and what comes of it."""
    count = sum(map(len, ALL.values()))
    parts = ["# Nasty files, and what comes of them\n", INTRO.format(count=count)]
    for kind, cases in ALL.items():
        parts.append(
            f"## {kind}\n\n| file | what is in it | rows stored | rescued | rejected |\n| --- | --- | --- | --- | --- |"
        )
        parts += [_line(case) for case in cases]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _line(case: Case) -> str:
    rescued = sum("_rescued" in record for record in case.stored.values())
    reasons = "; ".join(dict.fromkeys(reason for _, reason in case.rejected))
    stored = "those before the cut" if case.name == "cut.jsonl.gz" else str(len(case.stored))
    name = case.name.encode("unicode_escape").decode() if not case.name.isprintable() else case.name
    return f"| `{name}` | {case.what} | {stored} | {rescued or ''} | {reasons} |"
