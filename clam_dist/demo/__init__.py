"""Data to try the tool on: ``vowels``, simulated, of any size; ``digits``, small and real."""

from clam_dist.demo.writer import DEMOS, DemoFile, write_demo

__all__ = ["DEMOS", "DemoFile", "write_demo"]
