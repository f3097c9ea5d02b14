"""Which rows a device needs of others under split windows, by listing every row of every window."""

from functools import cache

from autoshard.mlir.listing import Window


@cache
def rows_from_others(window: Window, rows: int, shards: int) -> list[int]:
    """For every distance between devices over which rows are needed, the most that one device takes."""
    local, most = -(-rows // shards), dict[int, int]()
    for device in range(shards):
        touched = _rows(window, _run_by(device, window, rows, shards), rows)
        by_owner: dict[int, int] = {}
        for row in touched:
            by_owner[row // local] = by_owner.get(row // local, 0) + 1
        for owner, count in by_owner.items():
            if owner != device:
                most[owner - device] = max(most.get(owner - device, 0), count)
    return list(most.values())


def _rows(window: Window, indices: list[int], rows: int) -> list[int]:
    """The rows of the operand from the first to the last of these windows, without padding."""
    if not indices:
        return []
    begin, last = (index * window.stride - window.low for index in (indices[0], indices[-1]))
    return [
        place // window.base_dilation
        for place in range(begin, last + (window.size - 1) * window.dilation + 1)
        if place % window.base_dilation == 0 and 0 <= place // window.base_dilation < rows
    ]


def _run_by(device: int, window: Window, rows: int, shards: int) -> list[int]:
    """The windows whose results, or rows, are this device's."""
    if not window.is_scattered:
        share = -(-window.count // shards)
        return list(range(device * share, min((device + 1) * share, window.count)))
    mine = set(range(device * -(-rows // shards), min((device + 1) * -(-rows // shards), rows)))
    return [index for index in range(window.count) if mine & set(_rows(window, [index], rows))]
