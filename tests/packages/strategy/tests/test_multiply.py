from my_package.multiply import Multiply
from swa_alloc.testing import StrategyContract, candidates_of


class TestMultiply(StrategyContract):
    candidates = candidates_of(Multiply)
