"""The demo: a seeded feed, told as a story on real Spark, and a report of what happened.

It uses Tidemill as a user would, through `Mill`, and never knows more than a user could.
"""

from examples.demo.story import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
