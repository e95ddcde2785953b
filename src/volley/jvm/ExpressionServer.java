// SPDX-License-Identifier: Apache-2.0
package volley;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.invoke.SerializedLambda;
import java.lang.ref.WeakReference;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.Charset;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TimeZone;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Generator;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.JsonTuple;
import org.apache.spark.sql.catalyst.expressions.LambdaFunction;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.MutableProjection;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.Nondeterministic;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.SpecificInternalRow;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.ImperativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.TypedImperativeAggregate;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.YearMonthIntervalType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.Utils;

/**
 * Evaluates Catalyst expressions over Arrow record batches with Spark's own generated code. Spark's Janino compiles this
 * (connections.py, worker_jvm.py), so it is Java without lambdas, and type arguments are left out.
 *
 * It listens on a Unix domain socket. A connection carries one request at a time, in network byte order:
 *
 *   request   int32 program, int64 length, an encapsulated IPC record batch message with the arguments
 *   reply     int32 status, int64 length, the payload
 *             status 0: a record batch message with one column, the result
 *             status 1: the text of the exception that an evaluation raised
 *
 * In the driver, a program lives as long as the `Programs` that prepared it, which the driver's Python process holds. A
 * JVM beside a worker has those that requests for program 0 load: int32 number, then what `Programs.send` gave, or
 * nothing to drop that number.
 */
public final class ExpressionServer {
    private final Map programs = new ConcurrentHashMap();
    private final Map loaded = new ConcurrentHashMap();
    private boolean loads;

    /** Serves at the path of the only argument, until standard input ends: that is when its worker does. */
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        // What functions print belongs into the log of the worker.
        System.setOut(System.err);
        ExpressionServer server = new ExpressionServer(arguments[0]);
        server.loads = true;
        out.println("ready");
        out.close();
        while (System.in.read() >= 0) {
            // Nothing is said there.
        }
        Runtime.getRuntime().halt(0);
    }

    public ExpressionServer(String path) throws IOException {
        ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        server.bind(UnixDomainSocketAddress.of(path));
        Thread thread = new Thread(new Acceptor(this, server), "volley-expressions-accept");
        thread.setDaemon(true);
        thread.start();
    }

    /** The programs of one query, which are evaluated with these settings, and find the classes of users in `classes`. */
    public Programs programs(SQLConf conf, ClassLoader classes) {
        Iterator each = programs.values().iterator();
        while (each.hasNext()) {
            if (((WeakReference) each.next()).get() == null) {
                each.remove();
            }
        }
        return new Programs(this, conf, classes);
    }

    Program find(int number) {
        Program kept = (Program) loaded.get(Integer.valueOf(number));
        if (kept != null) {
            return kept;
        }
        WeakReference found = (WeakReference) programs.get(Integer.valueOf(number));
        Program program = found == null ? null : (Program) found.get();
        if (program == null) {
            throw new IllegalStateException("the query of program " + number + " has ended");
        }
        return program;
    }

    /** Loads or drops a program, as a request for program 0 says. */
    void load(ArrowBuf message, long length) throws Exception {
        if (!loads) {
            throw new IllegalStateException("this JVM does not accept programs");
        }
        ByteBuffer request = message.nioBuffer(0, (int) length);
        Integer number = Integer.valueOf(request.getInt());
        if (!request.hasRemaining()) {
            loaded.remove(number);
            return;
        }
        byte[] bytes = new byte[request.remaining()];
        request.get(bytes);
        ClassLoader classes = Expression.class.getClassLoader();
        Object[] sent = (Object[]) Utils.deserialize(bytes, classes);
        SQLConf conf = new SQLConf();
        Iterator each = ((Map) sent[2]).entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry setting = (Map.Entry) each.next();
            conf.setConfString((String) setting.getKey(), (String) setting.getValue());
        }
        byte[] whole = (byte[]) sent[0];
        boolean complete = ((Boolean) sent[3]).booleanValue();
        StructType input = (StructType) sent[1];
        loaded.put(number, new Program(number.intValue(), null, whole, complete, input, conf, classes));
    }

    /** What results may depend on beside settings, as options of another JVM. */
    public static String environment() {
        Locale locale = Locale.getDefault();
        return "-Duser.language=" + locale.getLanguage() + " -Duser.country=" + locale.getCountry()
                + " -Dfile.encoding=" + Charset.defaultCharset().name()
                + " -Duser.timezone=" + TimeZone.getDefault().getID();
    }

    // ---------------------------------------------------------------------------------------- programs

    public static final class Programs {
        private final ExpressionServer server;
        private final SQLConf conf;
        private final ClassLoader classes;
        private final List prepared = new ArrayList();

        Programs(ExpressionServer server, SQLConf conf, ClassLoader classes) {
            this.server = server;
            this.conf = conf;
            this.classes = classes;
        }

        /**
         * Prepares the first `roots` of `parts` as the program `number`; the others are its arguments, in the order of
         * the columns of its batches. Several roots are the fields f0, f1, ... of a struct. A root that is an aggregate
         * function has one column of groups instead: arrays of states, which are arrays of structs of its arguments.
         * If it is `complete`, there is one state, which is not merged. Returns null, the number of an equal program as
         * text, or why this one is refused.
         */
        public String prepare(int number, int roots, boolean complete, List parts) {
            // Expressions read settings of the thread when they are copied, and another session may be active there.
            return (String) SQLConf.withExistingConf(conf, new Preparation(this, number, roots, complete, parts));
        }

        String prepareWithSettings(int number, int roots, boolean complete, List parts) {
            StructType input = new StructType();
            Map ordinals = new IdentityHashMap();
            Map columns = new ConcurrentHashMap();
            for (int i = 0; i + roots < parts.size(); i++) {
                Expression argument = (Expression) parts.get(i + roots);
                boolean isColumn = argument instanceof AttributeReference;
                boolean nullable = !isColumn || argument.nullable();
                Object bound = new BoundReference(i, argument.dataType(), nullable);
                ordinals.put(argument, bound);
                if (isColumn) {
                    columns.put(Long.valueOf(((AttributeReference) argument).exprId().id()), bound);
                }
                input = input.add("c" + i, argument.dataType(), true);
            }
            List fields = new ArrayList();
            for (int i = 0; i < roots; i++) {
                fields.add(new Literal(UTF8String.fromString("f" + i), DataTypes.StringType));
                fields.add(((Expression) parts.get(i)).transformDown(new Bind(ordinals, columns)));
            }
            Expression whole = roots == 1 ? (Expression) fields.get(1) : new CreateNamedStruct(sequence(fields));
            String refusal = refusal(whole);
            if (refusal != null) {
                return refusal;
            }
            for (int i = 0; i < prepared.size(); i++) {
                Program other = (Program) prepared.get(i);
                if (other.complete == complete && other.input.equals(input) && areSame(other.whole, whole)) {
                    return Integer.toString(other.number);
                }
            }
            byte[] bytes;
            try {
                bytes = Utils.serialize(whole);
            } catch (Exception error) {
                return "it cannot be serialized";
            }
            Program program = new Program(number, whole, bytes, complete, input, conf, classes);
            prepared.add(program);
            server.programs.put(Integer.valueOf(number), new WeakReference(program));
            return null;
        }

        /**
         * A prepared program for the JVM of another process, with its settings; or, as text, why it stays here: it has
         * an object of a class that is not in one of these packages of Spark and the JDK.
         */
        public Object send(int number, String packages) throws IOException {
            Program program = server.find(number);
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            SendableObjects out = new SendableObjects(bytes, packages.split(";"));
            out.writeObject(program.whole);
            out.close();
            if (out.refused != null) {
                return "class " + out.refused + " is not available on the workers";
            }
            TreeMap settings = new TreeMap();
            scala.collection.Iterator each = conf.getAllConfs().iterator();
            while (each.hasNext()) {
                scala.Tuple2 setting = (scala.Tuple2) each.next();
                // Only those that Spark knows: others may be secrets, and no expression reads them.
                if (conf.isModifiable((String) setting._1())) {
                    settings.put(setting._1(), setting._2());
                }
            }
            settings.put("spark.sql.session.timeZone", conf.sessionLocalTimeZone());
            Boolean complete = Boolean.valueOf(program.complete);
            return Utils.serialize(new Object[] {bytes.toByteArray(), program.input, settings, complete});
        }

        /** Whether both are equal, also in their constants: Spark takes 0.0 for -0.0. */
        private static boolean areSame(Expression one, Expression other) {
            return one.equals(other) && constants(one).equals(constants(other));
        }

        private static List constants(Expression whole) {
            List found = new ArrayList();
            List pending = new ArrayList();
            pending.add(whole);
            while (!pending.isEmpty()) {
                Expression part = (Expression) pending.remove(pending.size() - 1);
                if (part instanceof Literal) {
                    found.add(String.valueOf(((Literal) part).value()));
                }
                scala.collection.Iterator children = part.children().iterator();
                while (children.hasNext()) {
                    pending.add(children.next());
                }
            }
            return found;
        }

        /** Why the JVM cannot evaluate the expression outside of Spark's tasks; null if it can. */
        private static String refusal(Expression whole) {
            if (!whole.resolved()) {
                return "it is not resolved";
            }
            if (!whole.deterministic()) {
                return "it is not deterministic";
            }
            List pending = new ArrayList();
            Set variables = new HashSet();
            pending.add(whole);
            while (!pending.isEmpty()) {
                Expression part = (Expression) pending.remove(pending.size() - 1);
                if (part instanceof LambdaFunction) {
                    scala.collection.Iterator bound = ((LambdaFunction) part).arguments().iterator();
                    while (bound.hasNext()) {
                        variables.add(((NamedExpression) bound.next()).exprId());
                    }
                }
                if (part instanceof NamedLambdaVariable
                        && !variables.contains(((NamedLambdaVariable) part).exprId())) {
                    return "it reads the variable of a lambda around it";
                }
                boolean generates = part instanceof Generator && (part != whole || !isPlain((Generator) part));
                boolean aggregates = part == whole && part instanceof AggregateFunction;
                if (part instanceof Nondeterministic || part instanceof PlanExpression || generates
                        || !aggregates && (part instanceof Unevaluable || part instanceof AggregateFunction)) {
                    return part.prettyName() + " needs a task of Spark";
                }
                scala.collection.Iterator children = part.children().iterator();
                while (children.hasNext()) {
                    pending.add(children.next());
                }
            }
            return null;
        }
    }

    /** Notices objects whose classes are not Spark's own. */
    static final class SendableObjects extends ObjectOutputStream {
        private final String[] packages;
        String refused;

        SendableObjects(OutputStream out, String[] packages) throws IOException {
            super(out);
            this.packages = packages;
            enableReplaceObject(true);
        }

        protected void annotateClass(Class written) {
            Class element = written;
            while (element.isArray()) {
                element = element.getComponentType();
            }
            if (!element.isPrimitive()) {
                check(element.getName(), element);
            }
        }

        protected Object replaceObject(Object written) {
            if (written instanceof SerializedLambda) {
                check(((SerializedLambda) written).getCapturingClass().replace('/', '.'), null);
            }
            return written;
        }

        private void check(String name, Class same) {
            boolean permitted = false;
            for (int i = 0; i < packages.length; i++) {
                permitted = permitted || name.startsWith(packages[i] + ".");
            }
            try {
                Class found = Class.forName(name, false, Expression.class.getClassLoader());
                permitted = permitted && (same == null || same == found);
            } catch (ClassNotFoundException absent) {
                permitted = false;
            }
            if (!permitted && refused == null) {
                refused = name;
            }
        }
    }

    static final class Preparation extends scala.runtime.AbstractFunction0 {
        private final Programs programs;
        private final int number;
        private final int roots;
        private final boolean complete;
        private final List parts;

        Preparation(Programs programs, int number, int roots, boolean complete, List parts) {
            this.programs = programs;
            this.number = number;
            this.roots = roots;
            this.complete = complete;
            this.parts = parts;
        }

        public Object apply() {
            return programs.prepareWithSettings(number, roots, complete, parts);
        }
    }

    private static scala.collection.immutable.Seq sequence(List list) {
        return scala.collection.JavaConverters.asScalaBuffer(list).toList();
    }

    /** Whether a generator makes rows of each row alone. Others may have more when all rows are through. */
    private static boolean isPlain(Generator generator) {
        return generator instanceof JsonTuple;
    }

    /** Puts columns of the input in the place of arguments. */
    static final class Bind extends scala.runtime.AbstractPartialFunction {
        private final Map ordinals;
        private final Map columns;

        Bind(Map ordinals, Map columns) {
            this.ordinals = ordinals;
            this.columns = columns;
        }

        private Object bound(Object part) {
            Object found = ordinals.get(part);
            if (found == null && part instanceof AttributeReference) {
                // Catalyst copies its attributes freely.
                found = columns.get(Long.valueOf(((AttributeReference) part).exprId().id()));
            }
            return found;
        }

        public boolean isDefinedAt(Object part) {
            return bound(part) != null;
        }

        public Object applyOrElse(Object part, scala.Function1 otherwise) {
            Object found = bound(part);
            return found != null ? found : otherwise.apply(part);
        }
    }

    /** An expression over the columns of `input`. */
    static final class Program {
        final int number;
        final Expression whole;
        final byte[] bytes;
        final boolean complete;
        final StructType input;
        final SQLConf conf;
        final ClassLoader classes;
        private final ConcurrentLinkedQueue idle = new ConcurrentLinkedQueue();

        Program(int number, Expression whole, byte[] bytes, boolean complete, StructType input, SQLConf conf,
                ClassLoader classes) {
            this.number = number;
            this.whole = whole;
            this.bytes = bytes;
            this.complete = complete;
            this.input = input;
            this.conf = conf;
            this.classes = classes;
        }

        void evaluate(ArrowBuf message, WritableByteChannel out) throws Throwable {
            Evaluation evaluation = new Evaluation(this, message, out);
            // Generated code finds classes through it, as in a task of Spark.
            Thread.currentThread().setContextClassLoader(classes);
            // The settings are those of a thread, and expressions read some of them while they are evaluated.
            SQLConf.withExistingConf(conf, evaluation);
            if (evaluation.thrown != null) {
                throw evaluation.thrown;
            }
        }
    }

    static final class Evaluation extends scala.runtime.AbstractFunction0 {
        private final Program program;
        private final ArrowBuf message;
        private final WritableByteChannel out;
        Throwable thrown;

        Evaluation(Program program, ArrowBuf message, WritableByteChannel out) {
            this.program = program;
            this.message = message;
            this.out = out;
        }

        public Object apply() {
            try {
                Evaluator evaluator = (Evaluator) program.idle.poll();
                if (evaluator == null) {
                    evaluator = new Evaluator(program);
                }
                evaluator.run(message, out);
                // After an exception the state of its expressions is unknown.
                program.idle.add(evaluator);
            } catch (Throwable error) {
                thrown = error;
            }
            return null;
        }
    }

    /** One copy of a program, for one thread at a time. Between batches it holds no memory outside of the heap. */
    static final class Evaluator {
        private final Schema inputSchema;
        private final Schema outputSchema;
        private final MutableProjection projection;
        private final Generator generator;
        private final Groups groups;
        private final UnsafeProjection toRow;

        Evaluator(Program program) {
            // Expressions may have state. A task of Spark has copies of its own, too.
            Expression whole = (Expression) Utils.deserialize(program.bytes, program.classes);
            StructType input = (StructType) carrier(program.input);
            DataType result = carrier(whole.dataType());
            toRow = hasNested(input) ? UnsafeProjection.create(input) : null;
            groups = whole instanceof AggregateFunction
                    ? new Groups((AggregateFunction) whole, program.complete, input.length()) : null;
            DataType states = new ArrayType(new ArrayType(input, false), false);
            inputSchema = arrow(groups == null ? input : new StructType().add("c0", states, true));
            outputSchema = arrow(new StructType().add("c0", result, true));
            generator = whole instanceof Generator ? (Generator) whole : null;
            if (generator == null && groups == null) {
                ArrayList one = new ArrayList();
                one.add(whole);
                ArrayList types = new ArrayList();
                types.add(result);
                projection = project(one, new SpecificInternalRow(sequence(types)));
            } else {
                projection = null;
            }
        }

        /** The type with a plain number for intervals and times, which rows of Spark hold as such numbers. */
        private static DataType carrier(DataType type) {
            if (type instanceof YearMonthIntervalType) {
                return DataTypes.IntegerType;
            }
            // There is no such class before Spark 4.1.
            if (type instanceof DayTimeIntervalType || type.typeName().startsWith("time(")) {
                return DataTypes.LongType;
            }
            if (type instanceof ArrayType) {
                ArrayType array = (ArrayType) type;
                return new ArrayType(carrier(array.elementType()), array.containsNull());
            }
            if (type instanceof MapType) {
                MapType map = (MapType) type;
                return new MapType(carrier(map.keyType()), carrier(map.valueType()), map.valueContainsNull());
            }
            if (type instanceof StructType) {
                StructField[] fields = ((StructType) type).fields();
                StructField[] carried = new StructField[fields.length];
                for (int i = 0; i < fields.length; i++) {
                    StructField field = fields[i];
                    DataType carrier = carrier(field.dataType());
                    carried[i] = new StructField(field.name(), carrier, field.nullable(), field.metadata());
                }
                return new StructType(carried);
            }
            return type;
        }

        /** Expressions are not made for arrays over Arrow's memory, so those are copied into rows of Spark first. */
        private static boolean hasNested(StructType input) {
            for (int i = 0; i < input.length(); i++) {
                DataType type = input.apply(i).dataType();
                if (type instanceof ArrayType || type instanceof StructType || type instanceof MapType) {
                    return true;
                }
            }
            return false;
        }

        private static Schema arrow(StructType type) {
            // The arguments of ArrowUtils.toArrowSchema differ between releases of Spark.
            VectorSchemaRoot root = ArrowWriter.create(type, "UTC", false, false).root();
            Schema schema = root.getSchema();
            root.close();
            return schema;
        }

        void run(ArrowBuf message, WritableByteChannel out) throws IOException {
            VectorSchemaRoot input = VectorSchemaRoot.create(inputSchema, ArrowUtils.rootAllocator());
            VectorSchemaRoot output = VectorSchemaRoot.create(outputSchema, ArrowUtils.rootAllocator());
            try {
                ArrowRecordBatch batch = parse(message);
                int rows = batch.getLength();
                try {
                    new VectorLoader(input).load(batch);
                } finally {
                    batch.close();
                }
                ((FieldVector) output.getFieldVectors().get(0)).setInitialCapacity(rows);
                ArrowWriter writer = ArrowWriter.create(output);
                ColumnVector[] columns = new ColumnVector[input.getFieldVectors().size()];
                for (int i = 0; i < columns.length; i++) {
                    columns[i] = new ArrowColumnVector((FieldVector) input.getFieldVectors().get(i));
                }
                ColumnarBatch table = new ColumnarBatch(columns, rows);
                for (int row = 0; row < rows; row++) {
                    writer.write(result(table.getRow(row)));
                }
                writer.finish();
                ArrowRecordBatch result = new VectorUnloader(output).getRecordBatch();
                try {
                    MessageSerializer.serialize(new WriteChannel(out), result);
                } finally {
                    result.close();
                }
            } finally {
                input.close();
                output.close();
            }
        }

        private InternalRow result(InternalRow values) {
            if (groups != null) {
                return new GenericInternalRow(new Object[] {groups.aggregate(values.getArray(0), toRow)});
            }
            if (toRow != null) {
                values = (InternalRow) toRow.apply(values);
            }
            return generator == null ? (InternalRow) projection.apply(values) : generate(values);
        }

        /** The rows that the generator makes of a row, as one array of structs. */
        private InternalRow generate(InternalRow values) {
            ArrayList made = new ArrayList();
            Object rows = generator.eval(values);
            scala.collection.Iterator each = rows instanceof scala.collection.Iterator
                    ? (scala.collection.Iterator) rows : ((scala.collection.Iterable) rows).iterator();
            while (each.hasNext()) {
                made.add(((InternalRow) each.next()).copy());
            }
            return new GenericInternalRow(new Object[] {new GenericArrayData(made.toArray())});
        }

        /** A record batch over the memory of its message, without a copy. */
        private static ArrowRecordBatch parse(ArrowBuf message) throws IOException {
            boolean marked = message.getInt(0) == -1;
            int start = marked ? 8 : 4;
            int length = message.getInt(start - 4);
            ByteBuffer metadata = message.nioBuffer(start, length).order(ByteOrder.LITTLE_ENDIAN);
            Message header = Message.getRootAsMessage(metadata);
            ArrowBuf body = message.slice(start + length, header.bodyLength());
            body.getReferenceManager().retain();
            return MessageSerializer.deserializeRecordBatch(header, body);  // it releases the body
        }
    }

    /** A projection into this row. */
    private static MutableProjection project(List expressions, InternalRow target) {
        MutableProjection projection = MutableProjection.create(sequence(expressions));
        projection.initialize(0);
        projection.target(target);
        return projection;
    }

    // ------------------------------------------------------------------------------------------ groups

    /**
     * Computes an aggregate function of one group after the other. As in a plan of Spark, each state is sent, and merged
     * into one that was empty, unless it is `complete`: some functions give another result without that.
     */
    static final class Groups {
        private final int width;
        private final boolean complete;
        private final ImperativeAggregate imperative;
        private final InternalRow partial;
        private final InternalRow state;
        private final JoinedRow joined = new JoinedRow();
        private final MutableProjection initialize;
        private final MutableProjection initializePartial;
        private final MutableProjection update;
        private final MutableProjection merge;
        private final MutableProjection evaluate;
        private final InternalRow result;

        Groups(AggregateFunction function, boolean complete, int width) {
            this.width = width;
            this.complete = complete;
            partial = new SpecificInternalRow(function.aggBufferSchema());
            state = new SpecificInternalRow(function.aggBufferSchema());
            if (function instanceof ImperativeAggregate) {
                imperative = ((ImperativeAggregate) function).withNewMutableAggBufferOffset(0)
                        .withNewInputAggBufferOffset(0);
                initialize = null;
                initializePartial = null;
                update = null;
                merge = null;
                evaluate = null;
                result = null;
                return;
            }
            imperative = null;
            // Of a row that is the state and then the arguments.
            int size = function.aggBufferAttributes().size();
            DeclarativeAggregate declared = (DeclarativeAggregate) function.transformDown(new Shift(size));
            Map columns = new ConcurrentHashMap();
            bind(declared.aggBufferAttributes(), 0, columns);
            bind(declared.inputAggBufferAttributes(), size, columns);
            Bind bound = new Bind(new IdentityHashMap(), columns);
            initialize = project(list(declared.initialValues(), bound), state);
            initializePartial = project(list(declared.initialValues(), bound), partial);
            update = project(list(declared.updateExpressions(), bound), partial);
            merge = project(list(declared.mergeExpressions(), bound), state);
            List value = new ArrayList();
            value.add(declared.evaluateExpression().transformDown(bound));
            result = new GenericInternalRow(1);
            evaluate = project(value, result);
        }

        private static void bind(scala.collection.Seq attributes, int start, Map columns) {
            for (int i = 0; i < attributes.size(); i++) {
                AttributeReference attribute = (AttributeReference) attributes.apply(i);
                columns.put(Long.valueOf(attribute.exprId().id()),
                        new BoundReference(start + i, attribute.dataType(), attribute.nullable()));
            }
        }

        private static List list(scala.collection.Seq expressions, Bind bound) {
            List found = new ArrayList();
            for (int i = 0; i < expressions.size(); i++) {
                found.add(((Expression) expressions.apply(i)).transformDown(bound));
            }
            return found;
        }

        /** The value of the function for these states, each of them an array of rows. */
        Object aggregate(ArrayData states, UnsafeProjection toRow) {
            if (complete) {
                update(states.getArray(0), toRow);
                return evaluate(partial);
            }
            if (imperative == null) {
                initialize.apply(InternalRow.empty());
            } else {
                imperative.initialize(state);
            }
            for (int i = 0; i < states.numElements(); i++) {
                update(states.getArray(i), toRow);
                merge();
            }
            return evaluate(state);
        }

        private Object evaluate(InternalRow found) {
            if (imperative == null) {
                evaluate.apply(found);
                return result.get(0, null);
            }
            return imperative.eval(found);
        }

        /** Makes the partial state that of these rows. */
        private void update(ArrayData rows, UnsafeProjection toRow) {
            if (imperative == null) {
                initializePartial.apply(InternalRow.empty());
            } else {
                imperative.initialize(partial);
            }
            for (int i = 0; i < rows.numElements(); i++) {
                InternalRow values = rows.getStruct(i, width);
                if (toRow != null) {
                    values = (InternalRow) toRow.apply(values);
                }
                if (imperative == null) {
                    update.apply(joined.apply(partial, values));
                } else {
                    imperative.update(partial, values);
                }
            }
        }

        private void merge() {
            if (imperative == null) {
                merge.apply(joined.apply(state, partial));
                return;
            }
            if (imperative instanceof TypedImperativeAggregate) {
                ((TypedImperativeAggregate) imperative).serializeAggregateBufferInPlace(partial);
            }
            imperative.merge(state, partial);
        }
    }

    /** Moves columns of the input behind those of an aggregate function's state. */
    static final class Shift extends scala.runtime.AbstractPartialFunction {
        private final int places;

        Shift(int places) {
            this.places = places;
        }

        public boolean isDefinedAt(Object part) {
            return part instanceof BoundReference;
        }

        public Object applyOrElse(Object part, scala.Function1 otherwise) {
            if (!isDefinedAt(part)) {
                return otherwise.apply(part);
            }
            BoundReference old = (BoundReference) part;
            return new BoundReference(old.ordinal() + places, old.dataType(), old.nullable());
        }
    }

    // ------------------------------------------------------------------------------------- connections

    static final class Acceptor implements Runnable {
        private final ExpressionServer server;
        private final ServerSocketChannel channel;

        Acceptor(ExpressionServer server, ServerSocketChannel channel) {
            this.server = server;
            this.channel = channel;
        }

        public void run() {
            try {
                while (true) {
                    SocketChannel accepted = channel.accept();
                    Thread thread = new Thread(new Connection(server, accepted), "volley-expressions");
                    thread.setDaemon(true);
                    thread.start();
                }
            } catch (IOException closed) {
                // Nobody can connect any more, and callers are told so.
            }
        }
    }

    static final class Connection implements Runnable {
        private final ExpressionServer server;
        private final SocketChannel channel;
        private final ByteBuffer header = ByteBuffer.allocateDirect(12);
        private final Reply reply = new Reply();

        Connection(ExpressionServer server, SocketChannel channel) {
            this.server = server;
            this.channel = channel;
        }

        public void run() {
            try {
                while (true) {
                    header.clear();
                    if (!fill(header)) {
                        break;
                    }
                    header.flip();
                    int number = header.getInt();
                    answer(number, header.getLong());
                }
            } catch (IOException gone) {
                // The other side has ended.
            } finally {
                try {
                    channel.close();
                } catch (IOException ignored) {
                    // It is closed.
                }
            }
        }

        private void answer(int number, long length) throws IOException {
            ArrowBuf message;
            try {
                message = ArrowUtils.rootAllocator().buffer(length);
            } catch (Throwable error) {
                skip(length);
                reply.clear();
                reply.write(ByteBuffer.wrap(String.valueOf(error).getBytes("UTF-8")));
                respond(1);
                return;
            }
            int status = 0;
            try {
                if (!fill(message.nioBuffer(0, (int) length))) {
                    throw new IOException("the request was cut off");
                }
                reply.clear();
                try {
                    if (number == 0) {
                        server.load(message, length);
                    } else {
                        server.find(number).evaluate(message, reply);
                    }
                } catch (Throwable error) {
                    reply.clear();
                    status = 1;
                    reply.write(ByteBuffer.wrap(String.valueOf(error).getBytes("UTF-8")));
                }
            } finally {
                message.getReferenceManager().release();
            }
            respond(status);
        }

        /** Reads a message that there is no memory for. */
        private void skip(long length) throws IOException {
            ByteBuffer scratch = ByteBuffer.allocate(1 << 16);
            long left = length;
            while (left > 0) {
                scratch.clear();
                scratch.limit((int) Math.min(left, scratch.capacity()));
                if (!fill(scratch)) {
                    throw new IOException("the request was cut off");
                }
                left -= scratch.position();
            }
        }

        private void respond(int status) throws IOException {
            ByteBuffer payload = reply.flipped();
            header.clear();
            header.putInt(status);
            header.putLong(payload.remaining());
            header.flip();
            ByteBuffer[] parts = new ByteBuffer[] {header, payload};
            while (header.hasRemaining() || payload.hasRemaining()) {
                channel.write(parts);
            }
        }

        private boolean fill(ByteBuffer buffer) throws IOException {
            while (buffer.hasRemaining()) {
                if (channel.read(buffer) < 0) {
                    return false;
                }
            }
            return true;
        }
    }

    /** A buffer that grows, and is used again. */
    static final class Reply implements WritableByteChannel {
        private ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 20);

        void clear() {
            buffer.clear();
        }

        ByteBuffer flipped() {
            buffer.flip();
            return buffer;
        }

        public int write(ByteBuffer source) {
            int length = source.remaining();
            if (buffer.remaining() < length) {
                int size = Math.max(2 * buffer.capacity(), buffer.position() + length);
                ByteBuffer larger = ByteBuffer.allocateDirect(size);
                buffer.flip();
                larger.put(buffer);
                buffer = larger;
            }
            buffer.put(source);
            return length;
        }

        public boolean isOpen() {
            return true;
        }

        public void close() {
            // The buffer is used again.
        }
    }
}
