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


class Jvm:
    """The method handles that plan reading needs, made once for each gateway."""

    def __init__(self, gateway: Java) -> None:
        self._gateway = gateway
        self.root = gateway.jvm
        invoke = self.root.java.lang.invoke
        self._handles = invoke.MethodHandles
        self._lookup = invoke.MethodHandles.publicLookup()
        self._type = invoke.MethodType.methodType
        self._proxies = invoke.MethodHandleProxies
        self._object = self.type("java.lang.Object")
        self._string = self.type("java.lang.String")
        self._function = self.type("scala.Function1")
        # No text that a user wrote contains this by accident, so a split is never ambiguous.
        self._nonce = secrets.token_hex(4)

    def type(self, name: str) -> Java:
        if name == "long":
            return self.root.java.lang.Long.TYPE
        return self.root.java.lang.Class.forName(name)

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

    def _generic(self, handle: Java) -> Java:
        return handle.asType(self._type(self._object, self._object))

    def _array(self, kind: str, items: list[Any]) -> Java:
        *package, name = kind.split(".")
        owner = self.root
        for part in package:
            owner = getattr(owner, part)
        array = self._gateway.new_array(getattr(owner, name), len(items))
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
