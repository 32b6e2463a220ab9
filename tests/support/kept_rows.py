"""K and V of what a row keeps."""

from torch import Tensor

from indexmem.eviction.context import RowCache


def kept_tokens(row: RowCache, layer: int) -> tuple[Tensor, Tensor]:
    """[H, K, d] each; a head's tokens beyond its number repeat its last one."""
    keys, values = row.keys_HLd[layer], row.values_HLd[layer]
    if row.holds_kept_only:
        return keys, values
    index = row.kept_HK[layer][..., None].expand(-1, -1, keys.shape[-1])
    return keys.gather(1, index), values.gather(1, index)
