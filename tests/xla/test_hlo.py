"""Counting collectives in HLO text."""

from autoshard.xla import collectives_of


def test_counts() -> None:
    """Plain, asynchronous, tuple-shaped and named like an operand."""
    text = """
      %all-reduce.1 = f32[8,4]{1,0} all-reduce(%dot.3), channel_id=1, replica_groups=[1,8]<=[8]
      %all-reduce = (f32[8]{0}, f32[64,8]{1,0}) all-reduce(%a, %b), channel_id=2
      %ag = (f32[1,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%all-reduce.1), dimensions={0}
      %agd = f32[8,4]{1,0} all-gather-done(%ag)
      ROOT %add = f32[8,4]{1,0} add(%all-reduce.1, %agd)
      %a2a = f32[8,4]{1,0:T(8,128)} ragged-all-to-all(%x), replica_groups={{0,1}}
    """
    assert collectives_of(text) == {"all-gather": 1, "all-reduce": 2, "ragged-all-to-all": 1}
