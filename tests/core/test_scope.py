"""Hook objects: named, with paired callbacks, and scoped to a thread by `with`."""

import threading
from typing import ClassVar
from weakref import WeakKeyDictionary

import pytest

from hookline.core.phases import Phase
from hookline.core.registry import HookRegistry, discard_all
from hookline.core.scope import HookObject, entry_of, register_object
from hookline.core.switch import Switch
from hookline.core.thread import local
from hookline.errors import HooklineError, HookNameError, HookTypeError


class Level(HookObject):
    """A level of hooks: the base class whose callbacks are empty."""

    switch = Switch()
    scopes: ClassVar = WeakKeyDictionary()

    def forward_preprocess(self, call): ...

    def forward_postprocess(self, call): ...

    def backward_preprocess(self, call): ...

    def backward_postprocess(self, call): ...

    @classmethod
    def scope_in(cls, thread):
        return Level.scopes.setdefault(thread, HookRegistry(cls.switch))


class Plain(Level):
    """A hook that tells what happens to it."""

    def __init__(self, fail_in=()):
        self.fail_in, self.told = fail_in, []

    def added(self, target):
        self.tell("added", target)

    def deleted(self, target):
        self.tell("deleted", target)

    def tell(self, what, target):
        self.told.append((what, target))
        if what in self.fail_in:
            raise ZeroDivisionError(what)


class Target:
    """Something that a hook is put on."""


def scoped():
    """The hooks scoped to this thread, by name."""
    return {name: entry.hook for name, entry in Level.scope_in(local.thread).named().items()}


def test_c2_a_class_has_its_own_name_unless_it_sets_one():
    """Also a subclass of a class that set one; an instance may have its own."""

    class Named(Level):
        name = "chosen"

    class Below(Named):
        pass

    own = Plain()
    own.name = "mine"
    assert (Level().name, Plain().name, Named().name, Below().name) == (
        *("Level", "Plain"),
        *("chosen", "Below"),
    )
    with own:
        assert list(scoped()) == ["mine"]


def test_c1_a_scope_registers_for_its_time():
    """`as` gives the hook, which is registered inside and gone outside, by any exit."""
    hook = Plain()
    with hook as given:
        assert given is hook
        assert scoped() == {"Plain": hook}
        assert Level.switch
    assert scoped() == {}
    assert not Level.switch

    def leave_by(error):
        with hook:
            raise error

    for error in (ValueError, KeyboardInterrupt, GeneratorExit):
        with pytest.raises(error):
            leave_by(error)
        assert scoped() == {}


def test_c1_a_scope_is_of_its_thread():
    """Another thread sees nothing of it, and may open one of the same name."""
    seen = []

    def look():
        seen.append(scoped())
        with Plain() as hook:
            seen.append(scoped() == {"Plain": hook})

    with Plain():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    assert seen == [{}, True]


def test_c2_a_name_is_open_once():
    """A second hook of the name is refused, is told nothing, and the first stays."""
    first, second = Plain(), Plain()
    with first:
        with pytest.raises(KeyError, match=r"^hook Plain already exists$"), second:
            pass
        assert scoped() == {"Plain": first}
    assert second.told == []
    assert scoped() == {}


def test_c2_two_of_one_class_nest_under_other_names():
    """`renamed` opens a scope of another name, for this or another hook, and leaves it alone."""
    outer, inner = Plain(), Plain()
    with outer, inner.renamed("part") as given, outer.renamed("again") as same:
        assert (given, same) == (inner, outer)
        assert scoped() == {"Plain": outer, "part": inner, "again": outer}
    assert inner.name == "Plain"
    assert scoped() == {}


def test_c2_the_innermost_scope_of_a_hook_is_left_first():
    """One hook in two scopes: leaving one leaves the other open."""
    hook = Plain()
    with hook:
        with hook.renamed("inner"):
            assert list(scoped()) == ["Plain", "inner"]
        assert list(scoped()) == ["Plain"]


def test_c3_a_hook_is_told_of_its_scope():
    """`added(None)` when it is registered, `deleted(None)` when the scope ends."""
    hook = Plain()
    with hook:
        assert hook.told == [("added", None)]
    assert hook.told == [("added", None), ("deleted", None)]


def test_c3_if_added_raises_nothing_stays():
    """The error comes out of `with`, and the hook is not registered."""
    with pytest.raises(ZeroDivisionError, match="added"), Plain(fail_in=["added"]):
        pass

    assert scoped() == {}
    assert not Level.switch


def test_c3_if_deleted_raises_the_hook_is_gone():
    """The error comes out, and nothing stays registered."""
    hook = Plain(fail_in=["deleted"])
    with pytest.raises(ZeroDivisionError, match="deleted"), hook:
        pass

    assert scoped() == {}
    assert not Level.switch


class Opened(Plain):
    """One that is told of its scopes, too."""

    def opened(self):
        self.tell("opened", list(scoped()))

    def closed(self):
        self.tell("closed", list(scoped()))


def test_a_hook_is_told_when_its_first_scope_opens_and_its_last_one_closes():
    """Registered both times; a scope inside of one of the same hook closes alone."""
    hook = Opened()
    hook.name = "a"
    with hook:
        assert hook.told == [("added", None), ("opened", ["a"])]
        with hook.renamed("b"):
            hook.told.clear()
        assert hook.told == [("deleted", None)]
        hook.told.clear()
    assert hook.told == [("closed", ["a"]), ("deleted", None)]


@pytest.mark.parametrize("what", ["opened", "closed"])
def test_c3_if_a_hook_raises_when_its_scope_opens_or_closes_nothing_stays(what):
    """It is told of its end all the same."""
    hook = Opened(fail_in=[what])
    with pytest.raises(ZeroDivisionError, match=what), hook:
        pass

    assert hook.told[-1] == ("deleted", None)
    assert scoped() == {}
    assert not Level.switch


def test_scopes_may_end_in_any_order():
    """Scopes that are entered and left by hand need not nest."""
    first, second = Plain(), Plain().renamed("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert list(scoped()) == ["second"]
    second.__exit__(None, None, None)
    assert scoped() == {}


def test_r10_a_scope_that_is_not_open_cannot_be_left():
    """Leaving twice, or in another thread, is an error that names the hook."""
    hook = Plain()
    with hook:
        pass
    with pytest.raises(HookNameError, match="Plain has no open scope in this thread"):
        hook.__exit__(None, None, None)


def test_r5_a_scope_ends_with_its_thread():
    """A thread that ends inside of a scope takes it along, and says so."""
    with pytest.warns(ResourceWarning, match="thread ended inside of `with` for TimerHook"):
        open_in_a_thread()

    from hookline.core.thread import module_switch

    assert not module_switch


def open_in_a_thread():
    from hookline.module_hooks import TimerHook

    thread = threading.Thread(target=TimerHook().__enter__)
    thread.start()
    thread.join()


class OnePhase(Level):
    """Overrides one callback."""

    needs_grad_input = True
    timed = True

    def backward_postprocess(self, call):
        return call


def test_an_entry_has_the_callbacks_that_a_hook_overrides():
    """Empty callbacks cost nothing: they are not called."""
    hook = OnePhase()
    entry = entry_of(hook, Level, "key")

    assert entry.phases == (Phase.BACKWARD,)
    assert entry.callbacks[Phase.BACKWARD](7) == 7
    assert (entry.name, entry.key, entry.hook) == ("key", "key", hook)
    assert (entry.paired, entry.needs_grad_input, entry.timed) == (True, True, True)
    assert entry.aborted is None
    assert entry_of(Plain(), Level, None).phases == ()


def test_an_instance_may_have_its_own_callbacks():
    """A callback set on the object counts as one that the hook overrides."""
    hook = Plain()
    hook.forward_preprocess = print
    hook.aborted = print
    entry = entry_of(hook, Level, None)

    assert entry.callbacks == {Phase.FORWARD_PRE: print}
    assert entry.aborted is print


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (print, "Hook must be of type Level, not <built-in function print>"),
        (None, "Hook must be of type Level, not None"),
        (Plain, "Hook must be of type Level, not the class Plain; did you mean an instance of it?"),
        (int, "Hook must be of type Level, not the class int; did you mean an instance of it?"),
    ],
)
def test_c4_something_else_than_a_hook_is_refused(given, message):
    """The error says what was given, and what may have been meant."""
    with pytest.raises(HookTypeError) as caught:
        entry_of(given, Level, "name")

    assert str(caught.value) == message
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, HooklineError)


def test_c3_hooks_on_one_place_are_told_of_it():
    """`added` and `deleted` get the module or function that the hook was put on."""
    registry, hook, target = HookRegistry(Switch()), Plain(), Target()
    handle = register_object(registry, entry_of(hook, Level, "name"), target)
    handle.remove()
    handle.remove()

    assert hook.told == [("added", target), ("deleted", target)]
    assert len(registry) == 0


@pytest.mark.parametrize(
    "remove",
    [
        lambda handle: handle.remove(),
        lambda handle: handle.__exit__(),
        lambda handle: handle.registry.discard(handle.entry),
        lambda handle: handle.registry.clear(),
        lambda handle: handle.registry.__del__(),
        lambda handle: discard_all([(handle.registry, handle.entry)]),
    ],
    ids=["remove", "with", "discard", "clear", "collected", "discard_all"],
)
def test_c3_a_hook_is_told_in_whatever_way_it_is_removed(remove):
    """`deleted` is called once, while the hook is there still."""
    registry, target, told = HookRegistry(Switch()), Target(), []

    class Sees(Level):
        def forward_preprocess(self, call): ...

        def deleted(self, target):
            told.append((target, len(registry)))

    handle = register_object(registry, entry_of(Sees(), Level, "name"), target)
    remove(handle)
    handle.remove()

    assert told == [(target, 1)]
    assert len(registry) == 0


def test_c3_a_hook_on_what_is_gone_is_told_so():
    """The registration keeps no target alive; None stands for one that is gone."""
    registry, hook, target = HookRegistry(Switch()), Plain(), Target()
    handle = register_object(registry, entry_of(hook, Level, "name"), target)
    hook.told.clear()
    del target
    handle.remove()

    assert hook.told == [("deleted", None)]


def test_c3_clearing_removes_all_also_if_deleted_raises():
    """The first error comes out, the others are details of it."""
    registry = HookRegistry(Switch())
    hooks = [Plain(["deleted"]), Plain(), Plain(["deleted"])]
    for number, hook in enumerate(hooks):
        register_object(registry, entry_of(hook, Level, str(number)), None)
    with pytest.raises(ZeroDivisionError) as caught:
        registry.clear()

    assert len(registry) == 0
    assert len(caught.value.__notes__) == 1
    assert [hook.told[-1] for hook in hooks] == [("deleted", None)] * 3


def test_r12_a_forked_child_tells_nobody():
    """What was registered in the parent is dropped without a word."""
    registry, hook = HookRegistry(Switch()), Plain()
    register_object(registry, entry_of(hook, Level, "name"), None)
    registry.forget()

    assert hook.told == [("added", None)]
    assert len(registry) == 0


def test_c3_a_hook_that_cannot_be_added_is_not_registered():
    """If `added` raises, the place is as before."""
    registry = HookRegistry(Switch())
    with pytest.raises(ZeroDivisionError):
        register_object(registry, entry_of(Plain(["added"]), Level, "name"), Target())

    assert len(registry) == 0
