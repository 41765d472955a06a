"""sqlite3 and a compiler run: batch programs whose output is compared byte for byte."""

import hashlib
import os
import shutil

from lib.harness import Failure, program


def missing(*commands):
    def check():
        gone = [c for c in commands if not shutil.which(c)]
        return f"{', '.join(gone)} not installed (tests/packages.txt)" if gone else None

    return check


SQL = """
pragma cache_size = -2000000;
pragma temp_store = memory;
create table t(id integer primary key, k integer, h text, pad blob);
with recursive c(i) as (select 1 union all select i + 1 from c where i < {rows})
insert into t select i, (i * 7919) % 100003,
  printf('%08x%08x', (i * 2654435761) & 0xffffffff, (i * 40503 + 77) & 0xffffffff),
  zeroblob(40) || printf('%0100d', i * i) from c;
create index by_k on t(k, h);
create index by_h on t(h);
update t set pad = pad || h where id % 3 = 0;
delete from t where id % 11 = 0;
pragma integrity_check;
select count(*), sum(k), sum(length(pad)), min(h), max(h) from t;
select sum(a.k * b.id % 1009) from t a join t b on b.h = a.h;
select count(*) from (select k, count(*) c from t group by k having c > 2);
.sha3sum t
"""


@program("sqlite", as_user=True, timeout_s=100, needs=missing("sqlite3"),
         normal=(("signal", 25),))
def sqlite(r):
    """An in-memory database larger than local memory."""
    script = r.write("script.sql", SQL.format(rows=r.size(80_000, 2_000_000)))
    with open(script) as f:
        c = r.start(["sqlite3", "-batch", ":memory:"], tag="sqlite", stdin=f)
    r.wait(c)
    if not c.out().startswith("ok\n"):
        raise Failure(f"integrity_check: {c.out()[:300]}\n{c.tail()}")
    return c.out()


UNIT = """
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <regex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>
template <int N> struct Step {{
  std::map<int, std::tuple<std::string, std::vector<int>>> m;
  std::variant<int, double, std::string, Step<N - 1> *> v;
  int run(int x) {{
    m[x] = {{std::to_string(x + N), std::vector<int>(N, x)}};
    std::sort(std::get<1>(m[x]).begin(), std::get<1>(m[x]).end(), [](int a, int b) {{ return a * {i} % 7 < b; }});
    return Step<N - 1>().run(x + N) + int(std::get<0>(m[x]).size());
  }}
}};
template <> struct Step<0> {{ int run(int x) {{ return x; }} }};
int unit{i}(const std::string &s) {{
  static const std::regex re("([a-z]+)([0-9]{i1})?");
  std::smatch found;
  std::unordered_map<std::string, std::function<int(int)>> table;
  table[s] = [&](int x) {{ return Step<{depth}>().run(x); }};
  return std::regex_search(s, found, re) ? table[s]({i}) : 0;
}}
"""


@program("gcc-build", as_user=True, timeout_s=120, needs=missing("g++", "make"), slow_only=True, shares=(25, 50))
def gcc_build(r):
    """make -j2: a tree of make, shells, compilers, assemblers and the linker; same objects."""
    units = r.size(4, 24)
    for i in range(units):
        r.write(f"u{i}.cc", UNIT.format(i=i, i1="{%d}" % (i + 1), depth=3))
    r.write("main.cc", "#include <cstdio>\n#include <string>\n"
            + "".join(f"int unit{i}(const std::string &);\n" for i in range(units))
            + "int main() { long s = 0;\n"
            + "".join(f'  s = s * 31 + unit{i}("abc{i}");\n' for i in range(units))
            + '  std::printf("%ld\\n", s); }\n')
    names = [f"u{i}" for i in range(units)] + ["main"]
    r.write("Makefile", "all: prog\nprog: " + " ".join(n + ".o" for n in names)
            + "\n\tg++ -o $@ $^\n%.o: %.cc\n\tg++ -O1 -g0 -c -o $@ $<\n")
    if r.user:
        os.chown(r.dir, r.user.pw_uid, r.user.pw_gid)
    r.call(["make", "-s", "-j2"], tag="make")
    digests = []
    for n in names:
        with open(r.path(n + ".o"), "rb") as f:
            digests.append(hashlib.sha256(f.read()).hexdigest())
    ran = r.call([r.path("prog")], tag="prog", canvas_on=False)
    return digests, ran.out()
