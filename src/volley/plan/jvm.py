"""Reading many JVM objects in one call.

Python cannot hand a lambda to Scala, and walking a plan object by object costs a round trip for each step. But
the JDK itself can make a `scala.Function1` out of composed method handles, with no code of ours in the JVM:
`plan.map(f).mkString(separator)` then reads a property of every node of a tree at once.
"""

from __future__ import annotations

import io
import secrets
import socket
from typing import Any

# A handle of a JVM object; py4j resolves everything at run time.
Java = Any


_PRIMITIVES = {"int": "Integer", "long": "Long", "boolean": "Boolean"}


class Jvm:
    """The method handles that plan reading needs, made once for each gateway."""

    def __init__(self, gateway: Java) -> None:
        self.root = gateway.jvm
        # Looking a name up costs several round trips, so each is looked up once.
        self._classes: dict[str, Java] = {}
        self._class = self.root.java.lang.Class
        invoke = self.root.java.lang.invoke
        self._handles = invoke.MethodHandles
        self._lookup = invoke.MethodHandles.publicLookup()
        self._type = invoke.MethodType.methodType
        self._proxies = invoke.MethodHandleProxies
        self._new_array = self.root.java.lang.reflect.Array.newInstance
        self._object = self.type("java.lang.Object")
        self._string = self.type("java.lang.String")
        self._function = self.type("scala.Function1")
        # No text that a user wrote contains this by accident, so a split is never ambiguous.
        self._nonce = secrets.token_hex(4)

    def type(self, name: str) -> Java:
        if name not in self._classes:
            self._classes[name] = (
                getattr(self.root.java.lang, _PRIMITIVES[name]).TYPE
                if name in _PRIMITIVES
                else self._class.forName(name)
            )
        return self._classes[name]

    def singleton(self, name: str) -> Java:
        """The instance of a Scala object."""
        return self.type(name + "$").getField("MODULE$").get(None)

    def separator(self, level: int) -> str:
        return f"\x01{self._nonce}{level}\x01"

    def method(self, owner: str, name: str, returns: str, *arguments: tuple[str, Any]) -> Java:
        """A handle of a method whose arguments, if any, are already bound: `(type, value)` for each."""
        types = [self.type(kind) for kind, _ in arguments]
        signature = (
            self._type(self.type(returns), self._array("java.lang.Class", types))
            if types
            else self._type(self.type(returns))
        )
        handle = self._lookup.findVirtual(self.type(owner), name, signature)
        if arguments:
            values = self._array("java.lang.Object", [value for _, value in arguments])
            handle = self._handles.insertArguments(handle, 1, values)
        return self._generic(handle)

    def chain(self, *handles: Java) -> Java:
        """The handles one after the other, each on the result of the one before."""
        result = handles[0]
        for handle in handles[1:]:
            result = self._handles.filterReturnValue(result, handle)
        return result

    def static(self, owner: str, name: str, returns: str, takes: str) -> Java:
        """A handle of a static method of one argument."""
        signature = self._type(self.type(returns), self._array("java.lang.Class", [self.type(takes)]))
        return self._generic(self._lookup.findStatic(self.type(owner), name, signature))

    def same(self) -> Java:
        """The handle that gives back what it gets."""
        return self._handles.identity(self._object)

    def joined(self, level: int, *handles: Java) -> Java:
        """What each handle says of one object, as text, in one string: many properties in a single pass."""
        result = self._text(handles[0])
        for handle in handles[1:]:
            result = self._concat(result, self.separator(level), self._text(handle))
        return self._generic(result)

    def otherwise(self, handle: Java, text: str) -> Java:
        """The handle, giving `text` where it throws."""
        throwable = self.type("java.lang.Throwable")
        constant = self._handles.constant(self._object, text)
        handler = self._handles.dropArguments(constant, 0, self._array("java.lang.Class", [throwable]))
        return self._handles.catchException(handle, throwable, handler)

    def function(self, handle: Java) -> Java:
        """The handle as a Scala function of one argument."""
        return self._proxies.asInterfaceInstance(self._function, handle)

    def join(self, level: int) -> Java:
        """From a Scala collection or iterator to its items as text, in one string."""
        return self.method(
            "scala.collection.IterableOnceOps",
            "mkString",
            "java.lang.String",
            ("java.lang.String", self.separator(level)),
        )

    def each(self, owner: str, returns: str, function: Java) -> Java:
        """`owner.map(function)`."""
        return self.method(owner, "map", returns, ("scala.Function1", function))

    def _text(self, handle: Java) -> Java:
        signature = self._type(self._string, self._array("java.lang.Class", [self._object]))
        value_of = self._lookup.findStatic(self._string, "valueOf", signature)
        return self._handles.filterReturnValue(handle, value_of)

    def _concat(self, left: Java, separator: str, right: Java) -> Java:
        """From an object to `left(object) + separator + right(object)`."""
        signature = self._type(self._string, self._array("java.lang.Class", [self._string]))
        concat = self._lookup.findVirtual(self._string, "concat", signature)
        separated = self._handles.insertArguments(concat, 1, self._array("java.lang.Object", [separator]))
        left = self._handles.filterReturnValue(left, separated)
        both = self._handles.filterArguments(
            concat, 0, self._array("java.lang.invoke.MethodHandle", [left, right])
        )
        once = self._new_array(self.type("int"), 2)  # zeros: both arguments are the first of the result
        target = self._type(self._string, self._array("java.lang.Class", [self._object]))
        return self._handles.permuteArguments(both, target, once)

    def _generic(self, handle: Java) -> Java:
        return handle.asType(self._type(self._object, self._object))

    def _array(self, kind: str, items: list[Any]) -> Java:
        array = self._new_array(self.type(kind), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array


class _PromptReader(socket.SocketIO):
    """Acknowledges what has arrived before it waits for more.

    py4j's replies of 20-100 KB otherwise stall for some 40 ms: the JVM waits for an acknowledgement (Nagle) that
    the kernel delays. The option is not sticky, hence before every read.
    """

    def readinto(self, buffer: Any) -> int | None:
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # type: ignore[attr-defined]
        return super().readinto(buffer)


def answer_promptly(gateway: Java) -> None:
    """Make this thread's py4j connection read without stalls. Only Linux can; elsewhere nothing changes."""
    if not hasattr(socket, "TCP_QUICKACK"):
        return
    client = gateway._gateway_client
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    if connection is None or connection.socket is None or isinstance(connection.stream.raw, _PromptReader):
        return
    sock = connection.socket
    if not isinstance(sock, socket.socket) or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock._io_refs += 1  # type: ignore[attr-defined]  # what makefile() does; the reader's close takes it back
    connection.stream = io.BufferedReader(_PromptReader(sock, "r"), buffer_size=1 << 16)
