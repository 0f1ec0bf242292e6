from swa_alloc import Strategy, register_strategy


@register_strategy
class Multiply(Strategy):
    """Multiplies the rows by zero."""

    name = "multiply"
    operation = "clear"

    def bind(self, target):
        table = target.table

        def clear(indices):
            table[indices] = table[indices] * 0

        return clear
