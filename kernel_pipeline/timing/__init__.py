"""Time calls: timers, stopping criteria, the launch gap, the device's state.

``stopwatch.Stopwatch`` times a call by ``records.settings.TimingSettings``.
"""
