"""Numbers with units for pages and sentences; the terminal has shorter formats. Pure."""


def size(count: float) -> str:
    """Bytes as `130.1 MiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while abs(count) >= 1000 and power + 1 < len(units):
        count, power = count / 1024, power + 1
    return f"{count:,.{1 if power else 0}f} {units[power]}"


def percent(value: float, digits: int = 0) -> str:
    """Hundredths as `1,250%`; the terminal and pages have the same."""
    return f"{value:,.{digits}f}%"


def duration(seconds: float) -> str:
    """Seconds as `85 μs`, `0.7 ms`, `2.5 s`, `12 min 5 s` or `3 h 20 min`."""
    if seconds < 1e-4:
        return f"{seconds * 1e6:.0f} μs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60} min"
