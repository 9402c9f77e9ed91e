"""A month of a user's days and nights, as a notebook: `make notebook` opens it.

The notebook is plain Python: `python docs/data/month.py -- --user user_amara --svg month.svg` runs
all cells. It reads Postgres at the address in HEADWATER_POSTGRES, as any analyst's program would.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="A month")

with app.setup:
    import os
    from pathlib import Path

    import marimo as mo
    import matplotlib as mpl
    import psycopg
    from matplotlib.figure import Figure
    from psycopg.rows import dict_row

    mpl.rcParams.update({"svg.hashsalt": "headwater", "font.size": 8})

    #: The last 31 days with data, of the wearable with the most days.
    MONTH = """
        with user_days as (
            select *, count(*) over (partition by source) as days
            from daily_summary
            where user_id = %(user)s
        )
        select datetime as day, source, steps, resting_heart_rate, heart_rate_variability,
               deep_sleep_minutes / 60 as deep, rem_sleep_minutes / 60 as rem,
               light_sleep_minutes / 60 as light
        from user_days
        where source = (select source from user_days order by days desc, source limit 1)
          and datetime > (select max(datetime) from user_days) - 31
        order by day
    """


@app.function
def month_of(dsn, user):
    """Return the rows of a user's last month."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute(MONTH, {"user": user}).fetchall()


@app.function
def plotted(rows):
    """Plot steps, sleep and heart of a month in one figure."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    steps, sleep, heart = figure.subplots(3, sharex=True)
    days = [row["day"] for row in rows]

    def values(name):
        return [float("nan") if row[name] is None else row[name] for row in rows]

    steps.bar(days, values("steps"), color="#4c78a8")
    steps.set_title("Steps", loc="left")
    bottom = [0.0] * len(rows)
    for name, color in (("deep", "#1f3a5f"), ("rem", "#7b6fb0"), ("light", "#b9c9e0")):
        hours = [row[name] or 0 for row in rows]
        sleep.bar(days, hours, bottom=bottom, color=color, label=name)
        bottom = [low + high for low, high in zip(bottom, hours, strict=True)]
    sleep.set_title("Hours asleep", loc="left")
    sleep.legend(loc="upper right", ncols=3, frameon=False)
    heart.plot(days, values("resting_heart_rate"), color="#c0504d", label="resting heart rate, bpm")
    heart.plot(days, values("heart_rate_variability"), color="#59a14f", label="HRV, ms")
    heart.set_title("Heart", loc="left")
    heart.legend(loc="upper right", ncols=2, frameon=False)
    for axes in (steps, sleep, heart):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01, y=0.25)
    return figure


@app.cell
def _():
    args = mo.cli_args()
    user = args.get("user") or "user_amara"
    passfile = Path(".headwater/postgres/pgpass").absolute()
    embedded = f"postgresql://headwater@127.0.0.1:15432/headwater?passfile={passfile}"
    dsn = os.environ.get("HEADWATER_POSTGRES") or embedded
    rows = month_of(dsn, user)
    return args, rows, user


@app.cell
def _(rows, user):
    mo.md(
        f"# A month of {user}\n\n{len(rows)} days of {rows[0]['source']}"
        if rows
        else f"# No data of {user}\n\nSelect another user: `-- --user ID`"
    )


@app.cell
def _(rows):
    picture = plotted(rows)
    picture
    return (picture,)


@app.cell
def _(args, picture):
    if args.get("svg"):
        picture.savefig(args.get("svg"), metadata={"Date": None})


if __name__ == "__main__":
    app.run()
