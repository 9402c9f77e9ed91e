"""What `headwater up --reload` shows of a part's log."""

from pathlib import Path

from headwater.gateway.local.processes import LogFollower, is_above_info

AT = "2026-11-23T06:59:56.123Z"


def test_what_hosts_say_and_what_goes_wrong_is_shown_and_news_are_not(tmp_path: Path):
    file = tmp_path / "workflows.log"
    screen = LogFollower(file, is_above_info)
    assert screen.new_lines() == []
    file.write_text(
        f"{AT} INFO headwater.streams.workflows.worker: partition 0 is taken over\n"
        "  of which this is more\n"
        "order/o-1 quote | asking\n"
        f"{AT} WARNING headwater.streams.workflows.hosts: order/o-1 no longer fits: \n"
        "  because of this\n"
        "order/o-1 quo",
        "utf-8",
    )
    assert screen.new_lines() == [
        "order/o-1 quote | asking",
        "order/o-1 no longer fits: ",
        "  because of this",
    ]
    with file.open("a", encoding="utf-8") as log:
        log.write("te | asked\n")
    assert screen.new_lines() == ["order/o-1 quote | asked"]
    assert screen.new_lines() == []
