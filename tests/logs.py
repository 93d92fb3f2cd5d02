"""Hooks of both levels that note each event; what they note, each test file says."""

from hookline import FunctionHook, ModuleHook

CALLBACKS = {
    "forward_pre": "forward_preprocess",
    "forward": "forward_postprocess",
    "backward_pre": "backward_preprocess",
    "backward": "backward_postprocess",
}
PHASES = tuple(CALLBACKS)


class ModuleLog(ModuleHook):
    """Tells `_log` of each event: the phase and the call."""

    def forward_preprocess(self, call):
        self._log("forward_pre", call)

    def forward_postprocess(self, call):
        self._log("forward", call)

    def backward_preprocess(self, call):
        self._log("backward_pre", call)

    def backward_postprocess(self, call):
        self._log("backward", call)


class FunctionLog(FunctionHook):
    """Tells `_log` of each event: the phase and the call."""

    def forward_preprocess(self, function, in_data):
        self._log("forward_pre", function)

    def forward_postprocess(self, function, in_data):
        self._log("forward", function)

    def backward_preprocess(self, function, in_data, out_grad):
        self._log("backward_pre", function)

    def backward_postprocess(self, function, in_data, out_grad):
        self._log("backward", function)


class Noted:
    """Notes every event, in a list that several hooks may share: the phase, and what `note` says.

    Args:
        name: the hook's name.
        events: the list.
        note: what is noted, given the hook and the call; what a call is called by default.
    """

    def __init__(self, name="Log", events=None, note=lambda hook, call: hook.called(call)):
        self.name = name
        self.events = [] if events is None else events
        self.note = note

    def _log(self, phase, call):
        self.events.append((phase, self.note(self, call)))

    def aborted(self, call, exception):
        self._log("aborted", call)

    @classmethod
    def named(cls, name, events):
        """A log that notes its own name at each event."""
        return cls(name, events, lambda hook, call: hook.name)
