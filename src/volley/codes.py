# SPDX-License-Identifier: Apache-2.0
"""What each code means, and what to do about it: for `volley help CODE` and the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from volley.support.reasons import MEANINGS, Reason

Kind = Literal["error", "reason", "refusal"]


@dataclass(frozen=True)
class Code:
    """`kind`: an error is raised, a reason is in a report, and a refusal is the answer of another process to a call."""

    name: str
    kind: Kind
    meaning: str
    remedy: str


def remedy_of(reason: str) -> str:
    """What to do about the reason with this code; empty if there is nothing."""
    return next((code.remedy for code in find_code(reason) if code.kind == "reason"), "")


def find_code(name: str) -> list[Code]:
    """Everything that has this code, whatever its case; a code may be both an error and a reason."""
    return [code for code in CODES if code.name == name.upper()]


# ------------------------------------------------------------------------------------------------ errors

_ERRORS: dict[str, tuple[str, str]] = {
    "VOLLEY_ERROR": (
        "The base of all errors. Errors that are raised have a code of their own.",
        "Catch `volley.VolleyError` to catch all of them.",
    ),
    "INVALID_OPTION": (
        "An option below `spark.volley.`, or of a command, has an invalid value or an unknown name.",
        "The message names it. `volley config` lists all options with their types and defaults.",
    ),
    "SESSION_NOT_SUPPORTED": (
        "What was passed to `volley.enable` is not a SparkSession.",
        "Pass the session that your program uses.",
    ),
    "CONNECT_SERVER_ELSEWHERE": (
        "The session is one of Spark Connect, and its server is in another process, which plans its queries.",
        'Let the server be `volley connect-server`, use a local server (`.remote("local[*]")`), or a classic session.',
    ),
    "VERSION_NOT_SUPPORTED": (
        "Spark, Java or a package is a version that Volley is not tested with.",
        "The message says what to install. `spark.volley.allowUntestedSpark=true` allows a newer Spark.",
    ),
    "NOT_NATIVE": (
        "`spark.volley.fallback=error` is set, and the action would not run natively as a whole.",
        "The message has the reasons; look them up here. `spark.volley.fallback=allow` lets Spark run it.",
    ),
    "QUERY_FAILED": (
        "A native query failed. More specific codes are used where the cause is known.",
        "Read the message. `spark.volley.enabled=false` runs the query on Spark; please report it.",
    ),
    "TASK_FAILED": (
        "A task failed in all its attempts (`spark.volley.task.attempts`).",
        "The message names the attempt and its last error. The log of its worker has more.",
    ),
    "ENGINE_ERROR": (
        "The native engine failed, and the data is not the cause: a bug.",
        "Spark runs the query, with a warning. Please report the query and the message.",
    ),
    "NO_WORKERS": (
        "None of the worker daemons could be used within `spark.volley.worker.timeoutSeconds`.",
        "`volley status host:port,...` says of each whether it is unreachable or refuses the token or the version.",
    ),
    "OPTION_REFUSED": (
        "The owner of a worker does not allow an option of the session.",
        "Remove the option from the session, or start the workers with another value (`volley worker --set`).",
    ),
    "HANDSHAKE_REFUSED": (
        "Two processes have different versions, or the token is not accepted.",
        "Install the versions that the message names on both sides, and give both the same token.",
    ),
    "PEER_LOST": (
        "Another process does not answer, or sends an invalid answer.",
        "Its tasks run elsewhere. If it happens often, look at the log and the memory of that process.",
    ),
    "PEER_TIMED_OUT": (
        "Another process did not answer before the deadline of the call.",
        "As `PEER_LOST`. On slow networks raise `spark.volley.worker.timeoutSeconds`.",
    ),
    "PEER_UNAVAILABLE": (
        "Nothing listens at the address, or the connection broke.",
        "Check that the process runs, the address, and firewalls between the machines.",
    ),
    "CERTIFICATE_REJECTED": (
        "TLS failed: a certificate is missing, wrong or not trusted, or only one side uses TLS.",
        "Compare `--tls-certificate` of the daemon with `spark.volley.tls.caFile` of the session.",
    ),
    "RESULT_INTERRUPTED": (
        "A worker was lost after the program had taken some of its rows, so that the query cannot begin again.",
        "Run the query again, or use an action that returns all rows at once.",
    ),
    "CHECKPOINT_LOST": (
        "A stage that was taken over from `spark.volley.shuffle.checkpoint` cannot be read any more.",
        "The query begins again without the checkpoint. Raised only if the program had taken some of the rows.",
    ),
    "DISCOVERY_FAILED": (
        "A data source failed to find its splits. The cause is what the source raised.",
        "Correct the source; the error is not retried.",
    ),
    "DATA_ERROR": (
        "The native engine met data for which Spark may raise an error: overflow, bad cast, broken file.",
        "Spark runs the query, and its result or error counts. Seen only with `spark.volley.fallback=error`.",
    ),
    "PYTHON_WORKER_LOST": (
        "A Python worker process ended while it ran a function.",
        "The function crashed it, or the operating system killed it because memory ran out. It is tried once more.",
    ),
    "JVM_LOST": (
        "The JVM beside a worker ended while it evaluated expressions.",
        "The operating system killed it because memory ran out, or an expression crashed it. It is tried once more, "
        "in a new JVM. `volley worker --jvm-memory` gives it more memory; its output is in the worker's log.",
    ),
    "COMMIT_FAILED": (
        "A write failed while its files were being moved into the table. It may be committed in part.",
        "Look at the folder that the message names before you repeat the write.",
    ),
    "ROWS_NOT_HANDED_OVER": (
        "Rows could not be passed from one engine to the other. This says nothing about the rows.",
        "Spark runs the whole query, unless its writer had begun. `spark.volley.mixed=false` avoids it.",
    ),
    "QUERY_CANCELLED": (
        "The query was cancelled: by Ctrl-C, `volley.cancel`, or one of Spark's own methods.",
        "Nothing: somebody asked for it.",
    ),
    "DEADLINE_EXCEEDED": (
        "The query took longer than `spark.volley.timeoutSeconds`.",
        "Raise the option. `volley history` shows which stage took how long.",
    ),
    "SHUFFLE_BLOCK_MISSING": (
        "Exchanged data is not where the manifest says, usually because its worker was lost.",
        "It is computed again. If that fails too, look for workers that end: `volley status`, memory limits.",
    ),
    "SHUFFLE_BLOCK_DAMAGED": (
        "Exchanged data does not match its checksum.",
        "Another replica is read, or it is computed again. If it happens twice, check the disk.",
    ),
    "SHUFFLE_LEASE_EXPIRED": (
        "The driver did not renew its lease, and the store removed the data of its query.",
        "The driver was paused for too long: check its memory, or raise `--lease-seconds` of the shuffle servers.",
    ),
    "SPILL_DISK_FULL": (
        "Exchanged data fits neither the memory budget nor a spill directory.",
        "Free space there, give the worker more directories (`--dir`) or more memory.",
    ),
    "OPERATOR_MEMORY_EXHAUSTED": (
        "A join, aggregate or sort needs more memory than the worker has for operators.",
        "Give workers more `--memory`, or fewer `--tasks`. Spark runs the query meanwhile, with a warning.",
    ),
    "TABLE_NOT_SUPPORTED": (
        "A table has a feature of Delta Lake or Iceberg that `volley_delta` or `volley_iceberg` does not read exactly.",
        "The message names the feature. Read the table with its own connector for Spark, or rewrite it without it.",
    ),
    "DATA_SOURCE_NOT_PORTABLE": (
        "A data source, or one of its partitions, cannot be sent to another process as plain data.",
        "Define the class in a module that is installed on the workers, and give partitions plain values.",
    ),
    "CLUSTER_FAILED": (
        "A local cluster could not be started, or one of its daemons ended.",
        "The message has what the daemon printed last.",
    ),
    "SHUFFLE_SERVER_LOST": (
        "A shuffle server did not answer, even after retries.",
        "Replicas are used. `volley status host:port,...` says what is wrong with it.",
    ),
    "DATA_GENERATION_FAILED": (
        "The data of a benchmark could not be generated.",
        "Install the extra `bench`, and make room in the directory that the message names.",
    ),
    "WORKER_LOST": (
        "A worker ended or was cut off while it ran a task.",
        "The task runs elsewhere. If it happens often, look at the log and the memory limit of the worker.",
    ),
}

# ------------------------------------------------------------------------------------------------ refusals

_REFUSALS: dict[str, tuple[str, str]] = {
    "SHUFFLE_STALE_EPOCH": (
        "The stage has since been rolled back.",
        "Nothing: a late attempt was fenced off.",
    ),
    "SHUFFLE_COMMIT_LOST": (
        "Another attempt at the same task was committed first.",
        "Nothing: one of them counts.",
    ),
    "SHUFFLE_ATTEMPT_CLOSED": (
        "The attempt was committed, aborted or never begun there.",
        "Nothing: a late call was refused.",
    ),
    "SHUFFLE_DAMAGED_ON_WAY": (
        "Data was damaged or lost in transit.",
        "It is sent again. If it happens often, check the network.",
    ),
    "SHUFFLE_NOT_RESERVED": (
        "Data was sent for which no room was reserved.",
        "The attempt is retried. Drivers and servers of different versions may cause it.",
    ),
    "SHUFFLE_UNKNOWN_QUERY": (
        "The server does not know the query, for example because it was restarted with other directories.",
        "The attempt is retried on other servers. Give a server the same `--dirs` when you restart it.",
    ),
    "SHUFFLE_QUERY_OVER": ("The query has ended.", "Nothing: a late call was refused."),
    "SHUFFLE_QUOTA": (
        "The application has used up its quota on a server (`--quota`).",
        "Raise the quota, or add servers.",
    ),
    "SHUFFLE_FULL": ("No eligible server has room.", "Add directories, memory or servers."),
    "SHUFFLE_DRAINING": ("The server is being stopped.", "Nothing: others take over."),
    "SHUFFLE_UNAVAILABLE": (
        "No eligible server answers, or the object store does not.",
        "`volley status host:port,...` says what is wrong with each server.",
    ),
    "UNKNOWN_DRIVER": (
        "A worker does not know the driver any more, because it was restarted or has not heard of it for a minute.",
        "Nothing: the driver says hello again.",
    ),
    "NOT_RESERVED": ("A worker has no room for this task any more.", "Nothing: it runs elsewhere."),
    "STOPPING": ("The process is being stopped.", "Nothing: others take over."),
    "INTERNAL": ("An unexpected error in another process.", "Its log has the traceback. Please report it."),
    "NOT_OFFERED": (
        "The process does not offer this call: it is of another kind or version.",
        "Check the address: a shuffle server is not a worker.",
    ),
}

# ------------------------------------------------------------------------------------------------ reasons

_REMEDIES: dict[Reason, str] = {
    Reason.OPERATOR: "Look for the operator in the support tables. Samples, RDDs and JDBC sources run "
    "on Spark.",
    Reason.EXPRESSION: "Use another function if one does the same. Most expressions are evaluated by Spark's code "
    "inside the native plan, if there is a JVM for that: see `NO_JVM_AT_THE_WORKERS`.",
    Reason.ARGUMENT_TYPES: "Cast the arguments to a type that the support tables list.",
    Reason.ARGUMENT_VALUE: "The detail names the constant or option. Another one may be native.",
    Reason.DATA_TYPE: "Do not select columns of this type if you do not need them, or cast them to a type that the "
    "support tables list.",
    Reason.CAST: "Cast in two steps, or give the workers a JVM, with which Spark's code evaluates the cast: see "
    "`NO_JVM_AT_THE_WORKERS`.",
    Reason.AGGREGATE: "Compute it in a query of its own, so that the rest is native.",
    Reason.WINDOW: "Write the frame with ROWS, or with RANGE over one numeric column.",
    Reason.FILE_FORMAT: "Convert the files to Parquet, ORC, Avro, CSV, JSON lines or text.",
    Reason.FILE_SYSTEM: "Local files, `s3a://` and reads of `abfss://` and `gs://` are native; the detail names a "
    "setting that is in the way. Reads of other file systems are native with `spark.volley.transport=local`.",
    Reason.FILE_OPTION: "The detail names the option. `docs/formats.md` lists native values of all of them.",
    Reason.DATA_SOURCE: "Python data sources are native; other connectors run on Spark. The rest of the query may be "
    "native if it is worth a hand-over.",
    Reason.PYTHON: "Use functions without accumulators or TaskContext. "
    "Start worker daemons with `--python-functions`.",
    Reason.TIME_ZONE: "Use a constant time zone, or give the workers a JVM, in which Spark's code evaluates it: see "
    "`NO_JVM_AT_THE_WORKERS`.",
    Reason.NONDETERMINISTIC: "`rand()`, `uuid()`, `monotonically_increasing_id()` and the like depend on Spark's "
    "partitions, which are known below exchanges and joins only. Compute them there, or use a key of the data instead.",
    Reason.ORDER: "Repeat the ORDER BY directly below the operator that needs it, or remove it if nothing does.",
    Reason.NO_JVM: "The detail names a worker and what it lacks. Start all worker daemons with `--jvm-expressions`, "
    "and install Java and PySpark there in the versions of the driver. User-defined functions in Scala and Java need "
    "transport local.",
    Reason.CAPTURE: "Please report the plan (`df.explain(True)`): a release of Spark may have changed a class.",
    Reason.ACTION: "Actions such as `foreach`, `rdd` and `checkpoint` have no native form. Use `collect`, `toArrow` or "
    "a write where you can.",
    Reason.CACHED_BY_SPARK: "Nothing: the next query over the frame is native. See `docs/caching.md` for which frames "
    "this concerns.",
    Reason.OBSERVED: "Observe all rows of a query that is native: not below a LIMIT or a self join, and with an action "
    "that reads every row. See `docs/actions.md`.",
    Reason.DISABLED: "Call `volley.enable(spark)`, and remove `spark.volley.enabled=false`.",
    Reason.MIXED: "Nothing, or remove what is not native: the other reasons name it.",
    Reason.REPLAY: "If Spark raises the same error, correct the data. If it does not, the query ran twice: guard the "
    "expression (`try_cast`, `try_divide`).",
    Reason.NO_WORKERS: "`volley status host:port,...` says what is wrong with each worker.",
    Reason.FAILED: "The warning and `volley history` have the error. Look up its code.",
}

CODES: tuple[Code, ...] = (
    *(Code(name, "error", *texts) for name, texts in _ERRORS.items()),
    *(Code(name, "refusal", *texts) for name, texts in _REFUSALS.items()),
    *(Code(str(reason), "reason", MEANINGS[reason], remedy) for reason, remedy in _REMEDIES.items()),
)
"""All of them: errors, refusals and reasons."""
