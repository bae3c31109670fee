"""What spark-submit starts: `spark-submit … $(tidemill bundle --entry) run --once` runs `tidemill run --once`
in the session that spark-submit configures. It must stay runnable as a plain script.
"""

from __future__ import annotations

from tidemill.cli.main import main

if __name__ == "__main__":
    main()
