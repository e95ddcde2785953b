// SPDX-License-Identifier: Apache-2.0
package volley;

import java.lang.reflect.Method;
import java.lang.reflect.Parameter;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.zone.ZoneOffsetTransition;
import java.time.zone.ZoneRules;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkFiles;
import org.apache.spark.api.python.PythonBroadcast;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.catalog.CatalogTablePartition;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BloomFilterMightContain;
import org.apache.spark.sql.catalyst.expressions.DynamicPruningExpression;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.TimestampFormatterHelper;
import org.apache.spark.sql.catalyst.expressions.aggregate.HyperLogLogPlusPlus;
import org.apache.spark.sql.catalyst.expressions.aggregate.PivotFirst;
import org.apache.spark.sql.catalyst.plans.ExistenceJoin;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper;
import org.apache.spark.sql.catalyst.util.ResolveDefaultColumns;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.execution.BaseSubqueryExec;
import org.apache.spark.sql.execution.CollectLimitExec;
import org.apache.spark.sql.execution.CollectMetricsExec;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.GlobalLimitExec;
import org.apache.spark.sql.execution.InSubqueryExec;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.LocalLimitExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.RangeExec;
import org.apache.spark.sql.execution.ReusedSubqueryExec;
import org.apache.spark.sql.execution.ScalarSubquery;
import org.apache.spark.sql.execution.SortExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SubqueryAdaptiveBroadcastExec;
import org.apache.spark.sql.execution.SubqueryBroadcastExec;
import org.apache.spark.sql.execution.TakeOrderedAndProjectExec;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.datasources.BucketingUtils;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.parquet.ParquetUtils;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.FileScan;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Writes a physical plan as JSON, in one pass. Spark's own Janino compiles this when a session first needs it
 * (reader.py), so it is Java without lambdas, and type arguments are left out.
 *
 * The first line of the text is [[ids], unread, observed]: Catalyst's ids of columns and subqueries, which the plan names
 * by their places in this list, so that plans that differ in nothing else have equal texts; how many values of the plan
 * are objects that the text only numbers, because it cannot say what they are; and whether `df.observe` asks for metrics.
 *
 * The second line has four tables. `entries` lists expressions and operators, each after all that it consists of, by whose
 * numbers it names them. `types` are the distinct data types, `scans` what file scans read, `functions` the pickled
 * Python functions. An entry is
 *
 *   [class, type, [children], {field: value}]         an expression; some classes have a form of their own, see part()
 *   {"operator": class, "children": [...], "expressions": {field: numbers}, "values": {field: value}}
 *
 * The last entry is the top of the plan. What cannot be read exactly is never replaced by a guess: it is left out, or
 * false where a value is expected.
 */
public final class PlanReader {
    private final Set readable;
    private final String[] settings;
    private final Set python;
    private final String[] pythonSettings;
    private final int mostParts;
    private final int deepest;
    private final FieldNames fieldNames = new FieldNames();

    /**
     * Of operators in `readable` every field is read, of others only the output. `settings` are read for file scans,
     * `pythonSettings` for the operators in `python`. All are lists with commas. A plan of more than `mostParts` parts, or an expression of more than `deepest`
     * levels, is refused: a part that stands in many places counts in each.
     */
    public PlanReader(
            String readable, String settings, String python, String pythonSettings, int mostParts, int deepest) {
        this.readable = new HashSet(Arrays.asList(readable.split(",")));
        this.settings = settings.split(",");
        this.python = new HashSet(Arrays.asList(python.split(",")));
        this.pythonSettings = pythonSettings.split(",");
        this.mostParts = mostParts;
        this.deepest = deepest;
    }

    /**
     * The plan of an execution, or a plan alone if `execution` is null. Throws IllegalStateException for a plan that is
     * too large.
     */
    public Reading read(SparkPlan plan, QueryExecution execution) {
        try {
            LogicalPlan logical = execution == null ? null : execution.logical();
            return new Reading(
                    readable, settings, python, pythonSettings, mostParts, deepest, fieldNames, plan, logical);
        } catch (StackOverflowError error) {
            throw new IllegalStateException("it is nested too deeply");
        }
    }

    /** Where each partition of a table lies, as a JSON list of local paths and of URLs. */
    public String locations(scala.collection.Iterable partitions) {
        Text text = new Text().open('[');
        scala.collection.Iterator each = partitions.iterator();
        while (each.hasNext()) {
            java.net.URI place = ((CatalogTablePartition) each.next()).location();
            boolean local = place.getScheme() == null || place.getScheme().equals("file");
            text.next().string(local
                    ? place.getPath() : place.getScheme() + "://" + place.getAuthority() + place.getPath());
        }
        return text.close(']').toString();
    }

    /** A JSON list of two: the values of the thread's properties with these names, and the tags of the session. */
    public String labels(org.apache.spark.sql.classic.SparkSession session, String properties) {
        Text text = new Text().open('[').next().open('[');
        String[] names = properties.split(",");
        for (int i = 0; i < names.length; i++) {
            String value = session.sparkContext().getLocalProperty(names[i]);
            text.next();
            if (value == null) {
                text.raw("null");
            } else {
                text.string(value);
            }
        }
        text.close(']').next().raw(strings((scala.collection.Iterable) session.getTags()));
        return text.close(']').toString();
    }

    /** Strings as a JSON list. */
    public String strings(scala.collection.Iterable strings) {
        Text text = new Text().open('[');
        scala.collection.Iterator each = strings.iterator();
        while (each.hasNext()) {
            text.next().string((String) each.next());
        }
        return text.close(']').toString();
    }

    /**
     * The offsets of a time zone from UTC in seconds, as a JSON list: [[first, period, epoch], [[second, offset], ...]].
     * `first` holds before the first transition, and `offset` from `second` on. After `period` seconds from `epoch` all
     * that follows it begins again; there is nothing after the last transition if `period` is 0. Null if there is no
     * such zone.
     */
    public String zoneOffsets(String id) {
        ZoneRules rules;
        try {
            rules = DateTimeUtils.getZoneId(id).getRules();
        } catch (DateTimeException unknown) {
            return null;
        }
        long period = 0L;
        long epoch = 0L;
        if (!rules.getTransitionRules().isEmpty()) {
            List listed = rules.getTransitions();
            int year = ((ZoneOffsetTransition) listed.get(listed.size() - 1)).getDateTimeBefore().getYear();
            epoch = LocalDate.of(year + 2, 7, 1).toEpochDay() * 86400L;
            // The Gregorian calendar repeats itself, with its days of the week.
            period = 146097L * 86400L;
        }
        Text text = new Text().open('[').next().open('[');
        text.next().number(rules.getOffset(Instant.MIN).getTotalSeconds());
        text.next().number(period).next().number(epoch).close(']').next().open('[');
        ZoneOffsetTransition next = rules.nextTransition(Instant.MIN);
        while (next != null && (period == 0L || next.toEpochSecond() < epoch + period)) {
            text.next().open('[').next().number(next.toEpochSecond());
            text.next().number(next.getOffsetAfter().getTotalSeconds()).close(']');
            next = rules.nextTransition(next.getInstant());
        }
        return text.close(']').close(']').toString();
    }

    /** One plan that was read: its text, and the operators that the text describes. */
    public static final class Reading {
        // As Catalyst writes ids into names. More digits would be none of its own.
        private static final String DELTA_FORMAT = "org.apache.spark.sql.delta.DeltaParquetFileFormat";
        /** Those that give the files of one version of a table, and not its changes. */
        private static final Set DELTA_INDEXES = new HashSet(Arrays.asList(new String[] {
            "TahoeLogFileIndex", "PreparedDeltaFileIndex", "TahoeBatchFileIndex"}));
        private static final Pattern ID = Pattern.compile("(?<=#)(0|[1-9][0-9]{0,17})(?![0-9])");

        private final Set readable;
        private final String[] settings;
        private final Set python;
        private final String[] pythonSettings;
        private final int mostParts;
        private final int deepest;

        private final Text entries = new Text();
        private final Text types = new Text();
        private final Text scans = new Text();
        private final Text functions = new Text();
        private final List operators = new ArrayList();

        private int numberOfEntries = 0;
        private int numberOfScans = 0;
        private int partsOfPlan = 0;
        private int[] sizes = new int[256];
        private int[] depths = new int[256];

        private final Map idNumbers = new HashMap();
        private final Text ids = new Text();
        private final Map partNumbers = new IdentityHashMap();
        private final Map attributeNumbers = new HashMap();
        private final Map typeNumbers = new HashMap();
        private final Map scanNumbers = new IdentityHashMap();
        private final Map functionNumbers = new IdentityHashMap();
        private final Map unreadNumbers = new IdentityHashMap();
        private final Map shownInOrder = new IdentityHashMap();
        private final FieldNames fieldNames;
        private final String parserPolicy;
        private Map parts = null;
        private boolean readsFiles = false;
        private boolean observed = false;

        Reading(
                Set readable, String[] settings, Set python, String[] pythonSettings, int mostParts, int deepest,
                FieldNames fieldNames, SparkPlan plan, LogicalPlan logical) {
            this.readable = readable;
            this.settings = settings;
            this.python = python;
            this.pythonSettings = pythonSettings;
            this.mostParts = mostParts;
            this.deepest = deepest;
            this.fieldNames = fieldNames;
            ids.open('[');
            entries.open('[');
            types.open('[');
            scans.open('[');
            functions.open('[');
            org.apache.spark.sql.classic.SparkSession session = plan.session();
            parserPolicy = session == null ? "" : setting(session, "spark.sql.legacy.timeParserPolicy");
            showOrder(plan);
            operator(plan);
            // The optimizer may have dropped the operator, but not the wish.
            observed = observed || logical != null && isObserved(logical);
        }

        private static boolean isObserved(LogicalPlan plan) {
            if (plan instanceof CollectMetrics) {
                return true;
            }
            return isAnyObserved(plan.children()) || isAnyObserved(plan.subqueries());
        }

        private static boolean isAnyObserved(scala.collection.Seq plans) {
            for (int i = 0; i < plans.size(); i++) {
                if (isObserved((LogicalPlan) plans.apply(i))) {
                    return true;
                }
            }
            return false;
        }

        public String text() {
            int length = ids.length() + entries.length() + types.length() + scans.length() + functions.length();
            StringBuilder all = new StringBuilder(length + 80);
            all.append('[').append(ids).append("],").append(unreadNumbers.size());
            all.append(',').append(observed).append("]\n");
            all.append("{\"entries\":").append(entries).append("],\"types\":").append(types);
            all.append("],\"scans\":").append(scans);
            return all.append("],\"functions\":").append(functions).append("]}").toString();
        }

        /** The operator whose entry is the `number`th of the entries of operators. */
        public SparkPlan operator(int number) {
            return (SparkPlan) operators.get(number);
        }

        /** The expressions with these numbers of entries, which commas separate. */
        public List expressions(String numbers) {
            if (parts == null) {
                parts = new HashMap();
                Iterator each = partNumbers.entrySet().iterator();
                while (each.hasNext()) {
                    Map.Entry part = (Map.Entry) each.next();
                    parts.put(part.getValue(), part.getKey());
                }
            }
            List found = new ArrayList();
            String[] wanted = numbers.split(",");
            for (int i = 0; i < wanted.length; i++) {
                found.add(parts.get(Integer.valueOf(wanted[i])));
            }
            return found;
        }

        // -------------------------------------------------------------------------------------- operators

        private int operator(SparkPlan plan) {
            count(1);
            // Wrappers whose plan is not among their children.
            if (plan instanceof AdaptiveSparkPlanExec) {
                return operator(((AdaptiveSparkPlanExec) plan).initialPlan());
            }
            if (plan instanceof ReusedSubqueryExec) {
                return operator((SparkPlan) ((ReusedSubqueryExec) plan).child());
            }
            if (plan instanceof GlobalLimitExec || plan instanceof CollectLimitExec) {
                showOrder(plan);
            }
            int[] children;
            if (plan instanceof ReusedExchangeExec) {
                children = new int[] {operator((SparkPlan) ((ReusedExchangeExec) plan).child())};
            } else {
                scala.collection.Seq below = (scala.collection.Seq) plan.children();
                children = new int[below.size()];
                for (int i = 0; i < children.length; i++) {
                    children[i] = operator((SparkPlan) below.apply(i));
                }
            }
            String name = shortName(plan);
            Text expressions = new Text();
            Text values = new Text();
            expressions.open('{');
            values.open('{');
            if (shownInOrder.containsKey(plan)) {
                expressions("ordering", plan.outputOrdering(), expressions);
            }
            if (plan instanceof FileSourceScanExec) {
                FileSourceScanExec scan = (FileSourceScanExec) plan;
                readsFiles = true;
                expressions("output", scan.output(), expressions);
                readsFiles = false;
                expressions("dataFilters", scan.dataFilters(), expressions);
                prunings(scan.partitionFilters(), expressions);
                values.key("scan").number(scan(scan));
            } else if (plan instanceof BatchScanExec && ((BatchScanExec) plan).scan() instanceof FileScan) {
                readsFiles = true;
                expressions("output", plan.output(), expressions);
                readsFiles = false;
                expressions("dataFilters", ((FileScan) ((BatchScanExec) plan).scan()).dataFilters(), expressions);
                values.key("scan").number(scan(plan));
            } else if (plan instanceof BatchScanExec && IcebergScan.isOne(((BatchScanExec) plan).scan())) {
                readsFiles = true;
                expressions("output", plan.output(), expressions);
                readsFiles = false;
                prunings(((BatchScanExec) plan).runtimeFilters(), expressions);
                values.key("scan").number(scan(plan));
            } else if (plan instanceof RangeExec) {
                RangeExec range = (RangeExec) plan;
                expressions("output", range.output(), expressions);
                values.key("start").number(range.start());
                values.key("end").number(range.end());
                values.key("step").number(range.step());
            } else if (readable.contains(name)) {
                fields((scala.Product) plan, expressions, values);
                if (python.contains(name)) {
                    pythonWorker(plan.conf(), values);
                }
            } else {
                expressions("output", plan.output(), expressions);
            }
            entries.next().open('{');
            entries.key("operator").string(name);
            entries.key("children").numbers(children);
            entries.key("expressions").raw(expressions.close('}'));
            entries.key("values").raw(values.close('}'));
            entries.close('}');
            operators.add(plan);
            observed = observed || plan instanceof CollectMetricsExec;
            return added(1, 1);
        }

        /**
         * Remembers whose order the rows of this plan are in, if that is no sort: Spark leaves out an ORDER BY of rows that
         * a join, an aggregate or a window has sorted already, in one partition. Such an operator has a field `ordering`.
         */
        private void showOrder(SparkPlan plan) {
            while (true) {
                if (plan instanceof AdaptiveSparkPlanExec) {
                    plan = ((AdaptiveSparkPlanExec) plan).initialPlan();
                } else if (plan instanceof ProjectExec || plan instanceof FilterExec
                        || plan instanceof CollectLimitExec || plan instanceof GlobalLimitExec
                        || plan instanceof LocalLimitExec
                        || plan instanceof WholeStageCodegenExec || plan instanceof InputAdapter) {
                    plan = (SparkPlan) ((scala.collection.Seq) plan.children()).apply(0);
                } else {
                    break;
                }
            }
            boolean sorts = plan instanceof SortExec || plan instanceof TakeOrderedAndProjectExec;
            if (!sorts && !((scala.collection.Seq) plan.children()).isEmpty()
                    && plan.outputPartitioning().numPartitions() == 1 && !plan.outputOrdering().isEmpty()) {
                shownInOrder.put(plan, plan);
            }
        }

        /** The partition filters of a scan that depend on the rows of another plan. */
        private void prunings(scala.collection.Seq filters, Text out) {
            out.key("prunings").open('[');
            scala.collection.Iterator each = filters.iterator();
            while (each.hasNext()) {
                Object filter = each.next();
                if (filter instanceof DynamicPruningExpression) {
                    int number = pruning(((DynamicPruningExpression) filter).child());
                    if (number >= 0) {
                        out.next().number(number);
                    }
                }
            }
            out.close(']');
        }

        /** [Pruning, type, value, id, plan, key]: the value is one of the key in the rows of the plan; -1 if it is another kind. */
        private int pruning(Expression condition) {
            if (!(condition instanceof InSubqueryExec)) {
                return -1;
            }
            InSubqueryExec filter = (InSubqueryExec) condition;
            scala.collection.Seq keys;
            if (filter.plan() instanceof SubqueryBroadcastExec) {
                keys = ((SubqueryBroadcastExec) (Object) filter.plan()).buildKeys();
            } else if (filter.plan() instanceof SubqueryAdaptiveBroadcastExec) {
                keys = ((SubqueryAdaptiveBroadcastExec) (Object) filter.plan()).buildKeys();
            } else {
                return -1;
            }
            // Of both classes: a list since Spark 4.0, and before that the one index.
            Object index = ((scala.Product) filter.plan()).productElement(1);
            if (index instanceof scala.collection.Seq) {
                scala.collection.Seq indices = (scala.collection.Seq) index;
                if (indices.size() != 1) {
                    return -1;
                }
                index = indices.apply(0);
            }
            int value = part(filter.child());
            int plan = operator((SparkPlan) ((SparkPlan) filter.plan()).children().apply(0));
            int key = part((Expression) keys.apply(((Integer) index).intValue()));
            entries.next().open('[').next().string("Pruning").next().number(type(filter.dataType()));
            entries.next().number(value).next().number(id(filter.exprId())).next().number(plan).next().number(key);
            return ended(1, 1);
        }

        private void fields(scala.Product plan, Text expressions, Text values) {
            String[] names = fieldNames.of(plan);
            for (int i = 0; i < plan.productArity(); i++) {
                String name = names[i];
                Object value = plan.productElement(i);
                if (plan instanceof BaseSubqueryExec && name.equals("name")) {
                    // A number that Spark gives it.
                    continue;
                }
                if (value instanceof Partitioning) {
                    values.key(name).string(shortName(value));
                    values.key("numPartitions").number(((Partitioning) value).numPartitions());
                    if (value instanceof Expression) {
                        expressions(name, value, expressions);
                    }
                } else if (value instanceof ExistenceJoin) {
                    values.key(name).string(shortName(value));
                    expressions("exists", ((ExistenceJoin) value).exists(), expressions);
                } else if (holdsExpressions(value)) {
                    expressions(name, value, expressions);
                } else if (isScalar(value)) {
                    values.key(name);
                    scalar(value, values);
                }
            }
        }

        /** An expression, or lists and options of them. The projections of an Expand may all be empty lists. */
        private static boolean holdsExpressions(Object value) {
            if (value instanceof scala.Some) {
                return holdsExpressions(((scala.Some) value).value());
            }
            if (value instanceof scala.collection.Seq) {
                scala.collection.Seq list = (scala.collection.Seq) value;
                return !list.isEmpty() && (isEmptyList(list.apply(0)) || holdsExpressions(list.apply(0)));
            }
            return value instanceof Expression;
        }

        private static boolean isEmptyList(Object value) {
            return value instanceof scala.collection.Seq && ((scala.collection.Seq) value).isEmpty();
        }

        private void expressions(String name, Object value, Text out) {
            out.key(name);
            expressions(value, out);
        }

        private void expressions(Object value, Text out) {
            if (value instanceof scala.Some) {
                expressions(((scala.Some) value).value(), out);
            } else if (value instanceof scala.collection.Seq) {
                out.open('[');
                scala.collection.Iterator each = ((scala.collection.Seq) value).iterator();
                while (each.hasNext()) {
                    out.next();
                    expressions(each.next(), out);
                }
                out.close(']');
            } else {
                int number = part((Expression) value);
                count(sizes[number]);
                out.number(number);
            }
        }

        // ------------------------------------------------------------------------------------ expressions

        private int part(Expression part) {
            Integer number = (Integer) partNumbers.get(part);
            if (number == null) {
                number = Integer.valueOf(newPart(part));
                partNumbers.put(part, number);
            }
            return number.intValue();
        }

        private int newPart(Expression part) {
            if (part instanceof AttributeReference) {
                return attribute((AttributeReference) part);
            }
            if (part instanceof Literal) {
                Literal literal = (Literal) part;
                begin(part, literal.dataType());
                return ended(value(literal.value(), literal.dataType(), entries.next()), 1);
            }
            if (part instanceof Alias) {
                Alias alias = (Alias) part;
                int child = part(alias.child());
                begin(part, null);
                entries.next().number(child).next().number(id(alias.exprId())).next().string(alias.name());
                return ended(sizes[child] + 1, depths[child] + 1);
            }
            if (part instanceof InSet) {
                InSet set = (InSet) part;
                int child = part(set.child());
                begin(part, null);
                entries.next().number(child).next().open('[');
                scala.collection.Iterator each = set.hset().iterator();
                while (each.hasNext()) {
                    value(each.next(), set.child().dataType(), entries.next());
                }
                entries.close(']');
                return ended(sizes[child] + set.hset().size() + 1, depths[child] + 1);
            }
            if (part instanceof ScalarSubquery) {
                ScalarSubquery subquery = (ScalarSubquery) part;
                int plan = operator((SparkPlan) subquery.plan());
                begin(part, subquery.dataType());
                entries.next().number(id(subquery.exprId())).next().number(plan);
                return ended(1, 1);
            }
            if (part instanceof InSubqueryExec) {
                InSubqueryExec subquery = (InSubqueryExec) part;
                int child = part(subquery.child());
                int plan = operator((SparkPlan) subquery.plan());
                begin(part, null);
                entries.next().number(child).next().number(id(subquery.exprId())).next().number(plan);
                return ended(sizes[child] + 1, depths[child] + 1);
            }
            if (part instanceof DynamicPruningExpression || part instanceof BloomFilterMightContain) {
                // They only leave out rows that a join drops anyway; the plan inside is not wanted.
                begin(part, null);
                return ended(1, 1);
            }
            return otherPart(part);
        }

        private int attribute(AttributeReference attribute) {
            int type = type(attribute);
            int id = id(attribute.exprId());
            // Catalyst copies its attributes freely; here equal ones become one.
            String key = id + " " + type + " " + attribute.nullable() + " " + attribute.name();
            Integer number = (Integer) attributeNumbers.get(key);
            if (number == null) {
                entries.next().open('[').next().string("AttributeReference").next().number(type);
                entries.next().number(id);
                name(attribute.name());
                entries.next().bool(attribute.nullable());
                number = Integer.valueOf(ended(1, 1));
                attributeNumbers.put(key, number);
            }
            return number.intValue();
        }

        /**
         * The name of a column. Those that Spark makes may have ids in them, as in sum(x#12): then it is a list of texts and
         * places of ids. What is read from files is called what it is called there.
         */
        private void name(String name) {
            if (readsFiles || name.indexOf('#') < 0) {
                entries.next().string(name);
                return;
            }
            entries.next().open('[');
            Matcher numbers = ID.matcher(name);
            int end = 0;
            while (numbers.find()) {
                entries.next().string(name.substring(end, numbers.start()));
                entries.next().number(id(Long.valueOf(numbers.group())));
                end = numbers.end();
            }
            entries.next().string(name.substring(end)).close(']');
        }

        /** The place of an id in `ids`. */
        private int id(ExprId id) {
            return id(Long.valueOf(id.id()));
        }

        private int id(Long id) {
            Integer number = (Integer) idNumbers.get(id);
            if (number == null) {
                ids.next().number(id.longValue());
                number = Integer.valueOf(idNumbers.size());
                idNumbers.put(id, number);
            }
            return number.intValue();
        }

        private int otherPart(Expression part) {
            scala.collection.Seq below = (scala.collection.Seq) part.children();
            int[] children = new int[below.size()];
            Map childParts = new IdentityHashMap();
            int size = 1;
            int depth = 0;
            for (int i = 0; i < children.length; i++) {
                Expression child = (Expression) below.apply(i);
                childParts.put(child, child);
                children[i] = part(child);
                size += sizes[children[i]];
                depth = Math.max(depth, depths[children[i]]);
                if (size > mostParts) {
                    throw new IllegalStateException("it has more than " + mostParts + " parts");
                }
            }
            int type = type(part);
            entries.next().open('[').next().string(shortName(part)).next().number(type);
            entries.next().numbers(children).next().open('{');
            scala.Product product = (scala.Product) part;
            String[] names = fieldNames.of(product);
            for (int i = 0; i < product.productArity(); i++) {
                String name = names[i];
                Object value = product.productElement(i);
                if (!isChild(value, childParts) && !name.equals("dataType")) {
                    entries.key(name);
                    scalar(value, entries);
                }
            }
            if (part instanceof TimestampFormatterHelper) {
                entries.key("parserPolicy").string(parserPolicy);
            }
            if (part instanceof HyperLogLogPlusPlus) {
                corrections(((HyperLogLogPlusPlus) part).relativeSD());
            }
            if (part instanceof SpecifiedWindowFrame) {
                entries.key("timeZone").string(SQLConf.get().sessionLocalTimeZone());
            }
            if (part instanceof PivotFirst) {
                entries.key("values").string(pivotValues((PivotFirst) part));
            }
            entries.close('}');
            return ended(size, depth + 1);
        }

        /** The values that become columns, as a list. */
        private static String pivotValues(PivotFirst pivot) {
            Text values = new Text();
            values.open('[');
            scala.collection.Iterator each = pivot.pivotColumnValues().iterator();
            while (each.hasNext()) {
                value(each.next(), pivot.pivotColumn().dataType(), values.next());
            }
            return values.close(']').toString();
        }

        /** The tables by which Spark corrects the estimates of a sketch of this precision. */
        private void corrections(double relativeError) {
            int table = (int) Math.ceil(2.0 * Math.log(1.106 / relativeError) / Math.log(2.0)) - 4;
            double[][] estimates = HyperLogLogPlusPlusHelper.RAW_ESTIMATE_DATA();
            if (table >= 0 && table < estimates.length) {
                entries.key("estimates").string(Arrays.toString(estimates[table]));
                entries.key("biases").string(Arrays.toString(HyperLogLogPlusPlusHelper.BIAS_DATA()[table]));
            }
        }

        /** Whether a field holds nothing but children of the expression, which are named already. */
        private static boolean isChild(Object value, Map children) {
            if (value instanceof Expression) {
                return children.containsKey(value);
            }
            if (value instanceof scala.Some) {
                return isChild(((scala.Some) value).value(), children);
            }
            if (value instanceof scala.Tuple2) {
                scala.Tuple2 pair = (scala.Tuple2) value;
                return isChild(pair._1(), children) && isChild(pair._2(), children);
            }
            if (value instanceof scala.collection.Seq) {
                scala.collection.Iterator each = ((scala.collection.Seq) value).iterator();
                while (each.hasNext()) {
                    if (!isChild(each.next(), children)) {
                        return false;
                    }
                }
                return true;
            }
            return false;
        }

        private void begin(Expression part, DataType type) {
            int number = type == null ? type(part) : type(type);
            entries.next().open('[').next().string(shortName(part)).next().number(number);
        }

        private int ended(int size, int depth) {
            entries.close(']');
            return added(size, depth);
        }

        private int added(int size, int depth) {
            if (depth > deepest) {
                throw new IllegalStateException("an expression has more than " + deepest + " levels");
            }
            if (numberOfEntries == sizes.length) {
                sizes = Arrays.copyOf(sizes, 2 * sizes.length);
                depths = Arrays.copyOf(depths, 2 * depths.length);
            }
            sizes[numberOfEntries] = size;
            depths[numberOfEntries] = depth;
            return numberOfEntries++;
        }

        private void count(int parts) {
            partsOfPlan += parts;
            if (partsOfPlan > mostParts) {
                throw new IllegalStateException("it has more than " + mostParts + " parts");
            }
        }

        // ------------------------------------------------------------------------------- types and values

        private int type(Expression part) {
            DataType type;
            try {
                type = part.dataType();
            } catch (Exception error) {
                type = null;  // a part that is no value, such as a window's frame
            }
            return type(type);
        }

        private int type(DataType type) {
            Integer number = (Integer) typeNumbers.get(type);
            if (number == null) {
                json(type, types.next());
                number = Integer.valueOf(typeNumbers.size());
                typeNumbers.put(type, number);
            }
            return number.intValue();
        }

        /** Spark's JSON of a type, but for metadata. A collated string, which Spark's JSON calls a string, is told. */
        private static Text json(DataType type, Text out) {
            if (type == null) {
                return out.string("?");
            }
            if (type instanceof StructType) {
                StructField[] fields = ((StructType) type).fields();
                out.open('{').key("type").string("struct").key("fields").open('[');
                for (int i = 0; i < fields.length; i++) {
                    out.next().open('{').key("name").string(fields[i].name()).key("type");
                    json(fields[i].dataType(), out).key("nullable").bool(fields[i].nullable()).close('}');
                }
                return out.close(']').close('}');
            }
            if (type instanceof ArrayType) {
                ArrayType array = (ArrayType) type;
                out.open('{').key("type").string("array").key("elementType");
                return json(array.elementType(), out).key("containsNull").bool(array.containsNull()).close('}');
            }
            if (type instanceof MapType) {
                MapType map = (MapType) type;
                json(map.keyType(), out.open('{').key("type").string("map").key("keyType"));
                json(map.valueType(), out.key("valueType"));
                return out.key("valueContainsNull").bool(map.valueContainsNull()).close('}');
            }
            // Users name their own types as they like.
            return out.string(type instanceof UserDefinedType ? "udt" : type.typeName());
        }

        /**
         * A value in Catalyst's internal form: text, in hexadecimal digits for binary, or a list of the parts of an array
         * or a struct; null for NULL, false where text would not be exact.
         * Returns of how many parts it consists.
         */
        static int value(Object value, DataType type, Text out) {
            int size = 1;
            if (value == null) {
                out.raw("null");
            } else if (value instanceof UTF8String && value.equals(UTF8String.fromString(value.toString()))
                    || value instanceof Boolean || value instanceof Integer || value instanceof Long
                    || value instanceof Short || value instanceof Byte || value instanceof Float
                    || value instanceof Double || value instanceof Decimal) {
                out.string(value.toString());
            } else if (value instanceof byte[]) {
                out.string(HexFormat.of().formatHex((byte[]) value));
            } else if (value instanceof ArrayData && type instanceof ArrayType) {
                ArrayData array = (ArrayData) value;
                DataType element = ((ArrayType) type).elementType();
                out.open('[');
                for (int i = 0; i < array.numElements(); i++) {
                    size += value(array.isNullAt(i) ? null : array.get(i, element), element, out.next());
                }
                out.close(']');
            } else if (value instanceof InternalRow && type instanceof StructType) {
                InternalRow row = (InternalRow) value;
                StructField[] fields = ((StructType) type).fields();
                out.open('[');
                for (int i = 0; i < fields.length; i++) {
                    DataType field = fields[i].dataType();
                    size += value(row.isNullAt(i) ? null : row.get(i, field), field, out.next());
                }
                out.close(']');
            } else {
                out.raw("false");
            }
            return size;
        }

        private static boolean isScalar(Object value) {
            return value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long
                    || value instanceof Short || value instanceof Byte || value instanceof Float
                    || value instanceof Double || value instanceof String || value instanceof Character
                    || value instanceof Enum || value instanceof scala.Enumeration.Value || value instanceof Class
                    || value instanceof DataType || isEvalContext(value)
                    || value instanceof scala.Some && isScalar(((scala.Some) value).value())
                    || isObject(value);
        }

        /** Since Spark 4.1 arithmetic has its mode in a class, with a setting that its data type shows as well. */
        private static boolean isEvalContext(Object value) {
            return value.getClass().getName().endsWith(".NumericEvalContext");
        }

        private static boolean isFinite(Object value) {
            return (value instanceof Double || value instanceof Float) && Double.isFinite(((Number) value).doubleValue());
        }

        private static boolean isObject(Object value) {
            return value.getClass().getName().endsWith("$") && !(value instanceof scala.collection.Iterable);
        }

        /** A constructor field. Enumerations and Scala's objects are their names, None and null are null. */
        private void scalar(Object value, Text out) {
            if (value == null || value == scala.None$.MODULE$) {
                out.raw("null");
            } else if (value instanceof scala.Some) {
                scalar(((scala.Some) value).value(), out);
            } else if (value instanceof Boolean || value instanceof Integer || value instanceof Long
                    || value instanceof Short || value instanceof Byte || isFinite(value)) {
                out.raw(value.toString());
            } else if (value instanceof DataType) {
                out.string(json((DataType) value, new Text()).toString());
            } else if (isEvalContext(value)) {
                out.string(((scala.Product) value).productElement(0).toString());
            } else if (value instanceof ExprId) {
                out.number(id((ExprId) value));
            } else if (value instanceof Class) {
                out.string(((Class) value).getName());
            } else if (value instanceof PythonFunction) {
                out.number(function((PythonFunction) value));
            } else if (value instanceof byte[]) {
                out.string(Base64.getEncoder().encodeToString((byte[]) value));
            } else if (shortName(value).equals("PythonUDTFPartitionColumnIndexes")) {
                // There is no such class before Spark 4.0.
                scalar(((scala.Product) value).productElement(0), out);
            } else if (value instanceof Float || value instanceof Double || value instanceof String
                    || value instanceof Character || value instanceof Enum
                    || value instanceof scala.Enumeration.Value) {
                out.string(value.toString());
            } else if (isObject(value)) {
                out.string(shortName(value));
            } else if (value instanceof scala.collection.Seq) {
                scala.collection.Iterator each = ((scala.collection.Seq) value).iterator();
                Text list = new Text();
                list.open('[');
                while (each.hasNext()) {
                    list.next();
                    scalar(each.next(), list);
                }
                out.string(list.close(']').toString());
            } else {
                // Something else: equal to itself alone, so that no two plans that differ here are taken for one.
                Integer number = (Integer) unreadNumbers.get(value);
                if (number == null) {
                    number = Integer.valueOf(unreadNumbers.size());
                    unreadNumbers.put(value, number);
                }
                out.string(shortName(value) + "#" + number);
            }
        }

        // ------------------------------------------------------------------------------- Python functions

        private int function(PythonFunction function) {
            Integer number = (Integer) functionNumbers.get(function);
            if (number == null) {
                Text text = new Text();
                describe(function, text);
                functions.next().raw(text);
                number = Integer.valueOf(functionNumbers.size());
                functionNumbers.put(function, number);
            }
            return number.intValue();
        }

        private static void describe(PythonFunction function, Text out) {
            scala.collection.Seq command = (scala.collection.Seq) function.command();
            byte[] bytes = new byte[command.size()];
            scala.collection.Iterator each = command.iterator();
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = ((Byte) each.next()).byteValue();
            }
            out.open('{');
            out.key("command").string(Base64.getEncoder().encodeToString(bytes));
            out.key("executable").string(function.pythonExec());
            out.key("version").string(function.pythonVer());
            out.key("includes").open('[');
            for (int i = 0; i < function.pythonIncludes().size(); i++) {
                out.next().string((String) function.pythonIncludes().get(i));
            }
            out.close(']');
            out.key("variables").open('{');
            Object[] names = function.envVars().keySet().toArray();
            for (int i = 0; i < names.length; i++) {
                out.key((String) names[i]).string((String) function.envVars().get(names[i]));
            }
            out.close('}');
            out.key("broadcasts").open('[');
            for (int i = 0; i < function.broadcastVars().size(); i++) {
                Broadcast broadcast = (Broadcast) function.broadcastVars().get(i);
                out.next().open('[').next().number(broadcast.id());
                out.next().string(((PythonBroadcast) broadcast.value()).path()).close(']');
            }
            out.close(']');
            out.close('}');
        }

        /** What Spark tells and gives a worker process of this session. */
        private void pythonWorker(SQLConf conf, Text out) {
            out.key("runner").open('{');
            scala.collection.Iterator each = ArrowPythonRunner.getPythonRunnerConfMap(conf).iterator();
            while (each.hasNext()) {
                scala.Tuple2 setting = (scala.Tuple2) each.next();
                out.key((String) setting._1()).string((String) setting._2());
            }
            out.close('}');
            out.key("settings").open('{');
            for (int i = 0; i < pythonSettings.length; i++) {
                String value;
                try {
                    value = conf.getConfString(pythonSettings[i]);
                } catch (java.util.NoSuchElementException unset) {
                    continue;
                }
                // The default of some is to be what another one is.
                if (value != null && !value.startsWith("<")) {
                    out.key(pythonSettings[i]).string(value);
                }
            }
            out.close('}');
            out.key("files").string(SparkFiles.getRootDirectory());
        }

        // ------------------------------------------------------------------------------------- file scans

        private int scan(SparkPlan scan) {
            Integer number = (Integer) scanNumbers.get(scan);
            if (number == null) {
                Text text = new Text();
                try {
                    if (scan instanceof BatchScanExec && IcebergScan.isOne(((BatchScanExec) scan).scan())) {
                        describe((BatchScanExec) scan, text);
                    } else if (scan instanceof BatchScanExec) {
                        describe((FileScan) ((BatchScanExec) scan).scan(), text);
                    } else {
                        describe((FileSourceScanExec) scan, text);
                    }
                } catch (Exception error) {
                    // Files that cannot be listed: Spark will say why.
                    text = new Text().raw("null");
                }
                scans.next().raw(text);
                number = Integer.valueOf(numberOfScans++);
                scanNumbers.put(scan, number);
            }
            return number.intValue();
        }

        private void describe(FileSourceScanExec scan, Text out) {
            HadoopFsRelation relation = scan.relation();
            StructField[] fields = relation.partitionSchema().fields();
            out.open('{');
            boolean isDelta = relation.fileFormat().getClass().getName().equals(DELTA_FORMAT);
            out.key("format").string(isDelta ? "ParquetFileFormat" : shortName(relation.fileFormat()));
            out.key("immutable").bool(isDelta);
            out.key("bucketed").bool(scan.bucketedScan());
            out.key("metadata").open('[');
            for (int i = 0; i < scan.output().size(); i++) {
                scala.collection.Iterator metadata = scan.fileConstantMetadataColumns().iterator();
                while (metadata.hasNext()) {
                    if (((AttributeReference) metadata.next()).exprId().equals(
                            ((AttributeReference) scan.output().apply(i)).exprId())) {
                        out.next().number(i);
                    }
                }
            }
            out.close(']');
            stored(scan.requiredSchema(), out);
            names("data_names", relation.dataSchema().fields(), out);
            names("partition_names", fields, out);
            PartitionedFile[] found = selectedFiles(scan);
            String refused = scan.bucketedScan() ? refusedBuckets(scan, found)
                    : isDelta ? refusedDelta(scan, found) : null;
            out.key("refused");
            nullable(refused, out);
            out.key("options").open('{');
            scala.collection.Iterator options = relation.options().iterator();
            while (options.hasNext()) {
                scala.Tuple2 option = (scala.Tuple2) options.next();
                out.key((String) option._1()).string((String) option._2());
            }
            out.close('}');
            settings((org.apache.spark.sql.classic.SparkSession) relation.sparkSession(), out);
            FileList files = new FileList(fields, out);
            for (int i = 0; i < found.length; i++) {
                files.add(found[i].urlEncodedPath(), found[i].fileSize(), found[i].modificationTime(),
                        found[i].partitionValues());
            }
            files.close();
            out.close('}');
        }

        /** The files that a scan reads. Before Spark 4.0 it has their directories instead. */
        private static PartitionedFile[] selectedFiles(FileSourceScanExec scan) {
            Object selected = scan.selectedPartitions();
            if (!(selected instanceof PartitionDirectory[])) {
                return (PartitionedFile[]) call(selected, "toPartitionArray");
            }
            List found = new ArrayList();
            PartitionDirectory[] directories = (PartitionDirectory[]) selected;
            for (int i = 0; i < directories.length; i++) {
                scala.collection.Iterator statuses = directories[i].files().iterator();
                while (statuses.hasNext()) {
                    FileStatusWithMetadata status = (FileStatusWithMetadata) statuses.next();
                    found.add(new PartitionedFile(
                            directories[i].values(), SparkPath.fromPath(status.getPath()), 0, status.getLen(),
                            new String[0], status.getModificationTime(), status.getLen(), status.metadata()));
                }
            }
            return (PartitionedFile[]) found.toArray(new PartitionedFile[0]);
        }

        /** The result of a method that not all releases have, or of a class in a jar that need not be there. */
        static Object call(Object subject, String method) {
            try {
                Method found = method(subject.getClass(), method);
                found.setAccessible(true);
                return found.invoke(subject, new Object[0]);
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
        }

        private static Method method(Class type, String name) throws NoSuchMethodException {
            for (Class each = type; each != null; each = each.getSuperclass()) {
                try {
                    return each.getDeclaredMethod(name, new Class[0]);
                } catch (NoSuchMethodException error) {
                    // It may be inherited.
                }
            }
            return type.getMethod(name, new Class[0]);
        }

        /** Why a bucketed scan means more than the rows of its files; null if it does not. */
        private static String refusedBuckets(FileSourceScanExec scan, PartitionedFile[] files) {
            if (scan.outputOrdering().nonEmpty()) {
                return "a bucketed table in the order of its buckets";
            }
            for (int i = 0; i < files.length; i++) {
                if (BucketingUtils.getBucketId(files[i].toPath().getName()).isEmpty()) {
                    return "a bucketed table with a file that is in no bucket";
                }
            }
            return null;
        }

        /** Why a scan of a Delta table means more than the rows of its Parquet files; null if it does not. */
        private static String refusedDelta(FileSourceScanExec scan, PartitionedFile[] files) {
            if (!DELTA_INDEXES.contains(shortName(scan.relation().location()))) {
                return "a Delta table by " + shortName(scan.relation().location());
            }
            String mode;
            try {
                Object format = scan.relation().fileFormat();
                Object mapping = format.getClass().getMethod("columnMappingMode", new Class[0])
                        .invoke(format, new Object[0]);
                mode = (String) mapping.getClass().getMethod("name", new Class[0]).invoke(mapping, new Object[0]);
            } catch (Exception error) {
                mode = "unknown";
            }
            if (!"none".equals(mode)) {
                return "a Delta table with column mapping: " + mode;
            }
            StructField[] fields = scan.requiredSchema().fields();
            for (int i = 0; i < fields.length; i++) {
                if (fields[i].name().startsWith("__delta_internal_")) {
                    return "a Delta table with deletion vectors";
                }
            }
            for (int i = 0; i < files.length; i++) {
                if (files[i].otherConstantMetadataColumnValues().contains("row_index_filter_id_encoded")) {
                    return "a Delta table with deletion vectors";
                }
            }
            return null;
        }

        /** A scan of DataSource V2, which has no buckets and no metadata columns. */
        private void describe(FileScan scan, Text out) {
            StructField[] fields = scan.fileIndex().partitionSchema().fields();
            Map options = null;
            boolean aggregates = false;
            scala.Product product = (scala.Product) scan;
            for (int i = 0; i < product.productArity(); i++) {
                Object value = product.productElement(i);
                if (value instanceof CaseInsensitiveStringMap) {
                    options = ((CaseInsensitiveStringMap) value).asCaseSensitiveMap();
                }
                aggregates = aggregates
                        || value instanceof scala.Some && ((scala.Some) value).value() instanceof Aggregation;
            }
            out.open('{');
            out.key("format").string(shortName(scan));
            out.key("immutable").bool(false);
            out.key("bucketed").bool(false);
            out.key("metadata").raw("[]");
            stored(scan.readDataSchema(), out);
            names("data_names", scan.dataSchema().fields(), out);
            names("partition_names", fields, out);
            out.key("refused");
            if (aggregates) {
                out.string("the scan aggregates");
            } else if (options == null) {
                out.string("its options cannot be read");
            } else {
                out.raw("null");
            }
            out.key("options").open('{');
            Object[] keys = options == null ? new Object[0] : options.keySet().toArray();
            for (int i = 0; i < keys.length; i++) {
                out.key((String) keys[i]).string((String) options.get(keys[i]));
            }
            out.close('}');
            settings((org.apache.spark.sql.classic.SparkSession) scan.sparkSession(), out);
            FileList files = new FileList(fields, out);
            scala.collection.Iterator each =
                    scan.fileIndex().listFiles(scan.partitionFilters(), scan.dataFilters()).iterator();
            while (each.hasNext()) {
                PartitionDirectory directory = (PartitionDirectory) each.next();
                scala.collection.Iterator statuses = directory.files().iterator();
                while (statuses.hasNext()) {
                    FileStatusWithMetadata status = (FileStatusWithMetadata) statuses.next();
                    files.add(status.getPath().toUri().toString(), status.getLen(), status.getModificationTime(),
                            directory.values());
                }
            }
            files.close();
            out.close('}');
        }

        private void settings(org.apache.spark.sql.classic.SparkSession session, Text out) {
            out.key("settings").open('{');
            for (int i = 0; i < settings.length; i++) {
                out.key(settings[i]).string(setting(session, settings[i]));
            }
            out.close('}');
        }

        /** A setting of the session, or of Hadoop if Spark does not know it; empty if neither has it. */
        private static String setting(org.apache.spark.sql.classic.SparkSession session, String key) {
            SQLConf conf = session.sessionState().conf();
            if (key.startsWith("spark.")) {
                return conf.getConfString(key);
            }
            String value = conf.getConfString(key, null);
            value = value != null ? value : session.sparkContext().hadoopConfiguration().get(key);
            return value != null ? value : "";
        }

        private static void names(String key, StructField[] fields, Text out) {
            out.key(key).open('[');
            for (int i = 0; i < fields.length; i++) {
                out.next().string(fields[i].name());
            }
            out.close(']');
        }

        /**
         * What the metadata of columns say about files: field ids, which are in the JSON of the schema, and defaults for files
         * that were written before a column was added to the table. Null if they say nothing.
         */
        private static void stored(StructType schema, Text out) {
            StructField[] fields = schema.fields();
            boolean defaults = false;
            for (int i = 0; i < fields.length; i++) {
                defaults = defaults || fields[i].getExistenceDefaultValue().isDefined();
            }
            out.key("stored");
            if (!defaults && !ParquetUtils.hasFieldIds(schema)) {
                out.raw("null");
                return;
            }
            Object[] values = (Object[]) (defaults ? ResolveDefaultColumns.existenceDefaultValues(schema)
                    : new Object[fields.length]);
            out.open('{').key("schema").raw(schema.json()).key("defaults").open('[');
            for (int i = 0; i < fields.length; i++) {
                value(values[i], fields[i].dataType(), out.next());
            }
            out.close(']').close('}');
        }

        /** A scan of an Iceberg table by Iceberg's own classes, as one of its Parquet files. */
        private void describe(BatchScanExec plan, Text out) {
            Text found = new Text();
            try {
                IcebergScan scan = new IcebergScan(plan);
                describe(plan, scan.refused(), found);
                found.key("unreachable");
                nullable(scan.unreachable(), found);
                found.key("iceberg").raw(scan.schema());
                names("partition_names", scan.partitionFields(), found);
                scan.files(found);
            } catch (Exception error) {
                // Files that cannot be planned, or a release of Iceberg with other methods.
                found = new Text();
                describe(plan, "an Iceberg table whose files are not known: " + error.getMessage(), found);
                found.key("partition_names").raw("[]").key("files").raw("[]").key("partitions").raw("[]");
            }
            out.raw(found.close('}'));
        }

        private void describe(BatchScanExec plan, String refused, Text out) {
            out.open('{');
            out.key("format").string("ParquetScan");
            out.key("immutable").bool(true);
            out.key("bucketed").bool(false);
            out.key("metadata").raw("[]");
            out.key("stored").raw("null");
            out.key("data_names").raw("[]");
            out.key("refused");
            nullable(refused, out);
            // Iceberg does not convert dates of the old calendar.
            out.key("options").raw("{\"datetimeRebaseMode\":\"CORRECTED\",\"int96RebaseMode\":\"CORRECTED\"}");
            settings(plan.session(), out);
        }

        private static void nullable(String text, Text out) {
            if (text == null) {
                out.raw("null");
            } else {
                out.string(text);
            }
        }

        /** The class without its package; of a Scala object, the name of the object. */
        static String shortName(Object value) {
            String name = value.getClass().getName();
            int end = name.endsWith("$") ? name.length() - 1 : name.length();
            return name.substring(name.lastIndexOf('.') + 1, end);
        }
    }

    /** The names of a case class's fields, which `productElementName` gives. Scala 2.12, that of Spark 3.5, has none. */
    public static final class FieldNames {
        private final Map known = new ConcurrentHashMap();

        String[] of(scala.Product value) {
            String[] names = (String[]) known.get(value.getClass());
            if (names == null) {
                names = parameters(value.getClass(), value.productArity());
                known.put(value.getClass(), names);
            }
            return names;
        }

        /**
         * The first `count` parameters of the method `copy`, which the compiler writes for every case class, but for those
         * with a repeated parameter; of these, the parameters of the only constructor. Declared fields would be in another
         * order: lazy ones come first.
         */
        public static String[] parameters(Class type, int count) {
            Method[] methods = type.getMethods();
            Parameter[] found = null;
            for (int i = 0; i < methods.length; i++) {
                if (methods[i].getName().equals("copy") && !methods[i].isSynthetic()) {
                    found = found == null ? methods[i].getParameters() : new Parameter[0];
                }
            }
            if (found == null && type.getConstructors().length == 1) {
                found = type.getConstructors()[0].getParameters();
            }
            String[] names = new String[count];
            for (int i = 0; i < count; i++) {
                if (found == null || i >= found.length || !found[i].isNamePresent()) {
                    throw new IllegalStateException("the fields of " + type.getName() + " have no names");
                }
                names[i] = found[i].getName();
            }
            return names;
        }
    }

    /**
     * A scan of an Iceberg table in a catalog of Spark's. Its classes are in a jar that need not be there, so they are called by
     * name. What Iceberg plans, it plans once: these are the files that Spark's tasks would read.
     */
    static final class IcebergScan {
        private static final String SCAN = "org.apache.iceberg.spark.source.SparkBatchQueryScan";
        private static final String FILES = "org.apache.iceberg.hadoop.HadoopFileIO";

        private final BatchScanExec plan;
        private final Object scan;
        private final Object projection;
        private final List tasks = new ArrayList();
        private final List constants = new ArrayList();
        private final List constantIds = new ArrayList();
        private String refused = null;
        private String unreachable = null;

        static boolean isOne(Object scan) {
            return scan.getClass().getName().equals(SCAN);
        }

        IcebergScan(BatchScanExec plan) throws Exception {
            this.plan = plan;
            scan = plan.scan();
            projection = has(scan, "projection") ? call(scan, "projection") : call(scan, "expectedSchema");
            Iterator planned = ((Iterable) call(scan, "tasks")).iterator();
            while (planned.hasNext()) {
                Object task = planned.next();
                tasks.add(task);
                refused = refused == null ? refusedTask(task) : refused;
            }
            if (plan.outputPartitioning().numPartitions() > 1
                    && !plan.outputPartitioning().getClass().getName().endsWith(".UnknownPartitioning")) {
                refused = "an Iceberg table that Spark reads by its partitions";
            }
            if (plan.outputOrdering().nonEmpty()) {
                refused = "an Iceberg table in an order";
            }
            if (refused == null) {
                findConstants();
            }
            Object io = call(call(scan, "table"), "io");
            if (!io.getClass().getName().equals(FILES)) {
                unreachable = "Iceberg's " + Reading.shortName(io);
            } else if (!tasks.isEmpty() && !sameSettings((Configuration) call(io, "conf"))) {
                unreachable = "an Iceberg catalog with settings of file systems of its own";
            }
        }

        private static Object call(Object subject, String method) {
            return Reading.call(subject, method);
        }

        private static boolean has(Object subject, String method) {
            for (Class each = subject.getClass(); each != null; each = each.getSuperclass()) {
                Method[] methods = each.getDeclaredMethods();
                for (int i = 0; i < methods.length; i++) {
                    if (methods[i].getName().equals(method) && methods[i].getParameterTypes().length == 0) {
                        return true;
                    }
                }
            }
            return false;
        }

        /** Why a task means more than the rows of a Parquet file without some of its positions; null if it does not. */
        private static String refusedTask(Object task) {
            if (!has(task, "deletes") || Boolean.TRUE.equals(call(task, "isDataTask"))) {
                return "rows of Iceberg's metadata";
            }
            Object file = call(task, "file");
            if (!call(file, "format").toString().equals("PARQUET")) {
                return "data files of an Iceberg table in " + call(file, "format");
            }
            if (call(file, "keyMetadata") != null) {
                return "encrypted files of an Iceberg table";
            }
            Iterator deletes = ((Iterable) call(task, "deletes")).iterator();
            while (deletes.hasNext()) {
                Object delete = deletes.next();
                String format = call(delete, "format").toString();
                if (!call(delete, "content").toString().equals("POSITION_DELETES")) {
                    return "equality deletes of an Iceberg table";
                }
                if (call(delete, "keyMetadata") != null) {
                    return "encrypted files of an Iceberg table";
                }
                if (!format.equals("PARQUET") && !format.equals("PUFFIN")) {
                    return "position deletes of an Iceberg table in " + format;
                }
            }
            return null;
        }

        /** The columns whose values are those of a file's partition, or describe the file. */
        private void findConstants() throws Exception {
            Map counts = new HashMap();
            for (int i = 0; i < tasks.size(); i++) {
                Iterator fields = identities(tasks.get(i)).keySet().iterator();
                while (fields.hasNext()) {
                    Object id = fields.next();
                    Integer count = (Integer) counts.get(id);
                    counts.put(id, Integer.valueOf(count == null ? 1 : count.intValue() + 1));
                }
            }
            Set left = new HashSet(counts.keySet());
            StructField[] read = plan.scan().readSchema().fields();
            Iterator columns = ((Iterable) call(projection, "columns")).iterator();
            for (int i = 0; columns.hasNext(); i++) {
                Object column = columns.next();
                Object id = call(column, "fieldId");
                Object count = counts.get(id);
                left.remove(id);
                if (count != null && ((Integer) count).intValue() < tasks.size()) {
                    refused = "an Iceberg table whose partitioning has changed";
                } else if (count != null && read[i].dataType().typeName().equals("binary")) {
                    refused = "an Iceberg table with binary partition values";
                } else if (count != null || read[i].name().equals("_file") || read[i].name().equals("_spec_id")) {
                    constants.add(read[i]);
                    constantIds.add(id);
                }
            }
            Method find = projection.getClass().getMethod("findField", new Class[] {Integer.TYPE});
            Iterator nested = left.iterator();
            while (nested.hasNext()) {
                if (find.invoke(projection, new Object[] {nested.next()}) != null) {
                    refused = "an Iceberg table that is partitioned by a field of a struct";
                }
            }
        }

        /** The places of the values in the partition of a task, by the ids of the columns that have them in all rows. */
        private static Map identities(Object task) {
            Map found = new HashMap();
            List fields = (List) call(call(task, "spec"), "fields");
            for (int i = 0; i < fields.size(); i++) {
                if (Boolean.TRUE.equals(call(call(fields.get(i), "transform"), "isIdentity"))) {
                    found.put(call(fields.get(i), "sourceId"), Integer.valueOf(i));
                }
            }
            return found;
        }

        private boolean sameSettings(Configuration other) {
            Configuration ours = ((org.apache.spark.sql.classic.SparkSession) plan.session()).sessionState().newHadoopConf();
            return fileSystems(ours).equals(fileSystems(other));
        }

        private static Map fileSystems(Configuration configuration) {
            Map found = new HashMap();
            Iterator each = configuration.iterator();
            while (each.hasNext()) {
                Map.Entry entry = (Map.Entry) each.next();
                if (((String) entry.getKey()).startsWith("fs.")) {
                    found.put(entry.getKey(), entry.getValue());
                }
            }
            return found;
        }

        String refused() {
            return refused;
        }

        String unreachable() {
            return unreachable;
        }

        StructField[] partitionFields() {
            return (StructField[]) constants.toArray(new StructField[0]);
        }

        /** Iceberg's JSON of the columns that are read, with ids and defaults. */
        String schema() throws Exception {
            Class parser = Class.forName("org.apache.iceberg.SchemaParser", true, scan.getClass().getClassLoader());
            return (String) parser.getMethod("toJson", new Class[] {projection.getClass()})
                    .invoke(null, new Object[] {projection});
        }

        /** The files, and the deletes of each that has some. */
        void files(Text out) throws Exception {
            boolean readable = refused == null && unreachable == null;
            FileList files = new FileList(partitionFields(), out);
            Text deletes = new Text().open('[');
            for (int i = 0; readable && i < tasks.size(); i++) {
                Object file = call(tasks.get(i), "file");
                files.add(url(file), ((Long) call(file, "fileSizeInBytes")).longValue(), 0L, partition(tasks.get(i)));
                Iterator each = ((Iterable) call(tasks.get(i), "deletes")).iterator();
                while (each.hasNext()) {
                    Object delete = each.next();
                    deletes.next().open('[').next().number(i).next().string(url(delete));
                    deletes.next().raw(call(delete, "fileSizeInBytes")).next().string(location(file));
                    if (call(delete, "format").toString().equals("PUFFIN")) {
                        deletes.next().raw(call(delete, "contentOffset"));
                        deletes.next().raw(call(delete, "contentSizeInBytes"));
                    }
                    deletes.close(']');
                }
            }
            files.close();
            out.key("deletes").raw(deletes.close(']'));
        }

        private static String location(Object file) {
            return call(file, has(file, "location") ? "location" : "path").toString();
        }

        private String url(Object file) throws Exception {
            Path path = new Path(location(file));
            Configuration configuration = (Configuration) call(call(call(scan, "table"), "io"), "conf");
            return path.getFileSystem(configuration).makeQualified(path).toUri().toString();
        }

        private InternalRow partition(Object task) throws Exception {
            Map places = identities(task);
            Object[] values = new Object[constants.size()];
            for (int i = 0; i < values.length; i++) {
                StructField field = (StructField) constants.get(i);
                Integer place = (Integer) places.get(constantIds.get(i));
                if (place == null) {
                    Object value = field.name().equals("_file") ? location(call(task, "file"))
                            : call(call(task, "spec"), "specId");
                    values[i] = catalyst(value, field.dataType());
                } else {
                    Object row = call(call(task, "file"), "partition");
                    Method get = row.getClass().getMethod("get", new Class[] {Integer.TYPE, Class.class});
                    get.setAccessible(true);
                    values[i] = catalyst(get.invoke(row, new Object[] {place, Object.class}), field.dataType());
                }
            }
            return new GenericInternalRow(values);
        }

        /** A value of Iceberg's as Catalyst has it. A column may have become wider since the file was written. */
        private static Object catalyst(Object value, DataType type) {
            if (value instanceof CharSequence) {
                return UTF8String.fromString(value.toString());
            }
            if (value instanceof java.math.BigDecimal) {
                return Decimal.apply((java.math.BigDecimal) value);
            }
            if (value instanceof Integer && type.typeName().equals("long")) {
                return Long.valueOf(((Integer) value).longValue());
            }
            if (value instanceof Float && type.typeName().equals("double")) {
                return Double.valueOf(((Float) value).doubleValue());
            }
            return value;
        }
    }

    /** Path, size, time and the number of the partition of each file, then the values of each partition. */
    static final class FileList {
        private final StructField[] fields;
        private final Text out;
        private final Map partitions = new IdentityHashMap();
        private final List rows = new ArrayList();

        FileList(StructField[] fields, Text out) {
            this.fields = fields;
            this.out = out;
            out.key("files").open('[');
        }

        void add(String url, long size, long modified, InternalRow values) {
            Integer partition = (Integer) partitions.get(values);
            if (partition == null) {
                partition = Integer.valueOf(rows.size());
                partitions.put(values, partition);
                rows.add(values);
            }
            out.next().open('[').next().string(url).next().number(size);
            out.next().number(modified).next().number(partition.intValue()).close(']');
        }

        void close() {
            out.close(']');
            out.key("partitions").open('[');
            for (int i = 0; i < rows.size(); i++) {
                InternalRow row = (InternalRow) rows.get(i);
                out.next().open('[');
                for (int j = 0; j < fields.length; j++) {
                    DataType type = fields[j].dataType();
                    Reading.value(row.isNullAt(j) ? null : row.get(j, type), type, out.next());
                }
                out.close(']');
            }
            out.close(']');
        }
    }

    /** JSON of ASCII characters alone: whatever text a user wrote comes through, unpaired surrogates included. */
    static final class Text {
        private static final char[] DIGITS = "0123456789abcdef".toCharArray();
        private final StringBuilder out = new StringBuilder();
        private boolean first = true;

        int length() {
            return out.length();
        }

        public String toString() {
            return out.toString();
        }

        Text open(char bracket) {
            out.append(bracket);
            first = true;
            return this;
        }

        Text close(char bracket) {
            out.append(bracket);
            first = false;
            return this;
        }

        /** The next item of a list. */
        Text next() {
            if (!first) {
                out.append(',');
            }
            first = false;
            return this;
        }

        /** The next item of an object. */
        Text key(String name) {
            next().string(name);
            out.append(':');
            return this;
        }

        Text raw(Object json) {
            out.append(json.toString());
            return this;
        }

        Text number(long number) {
            out.append(number);
            return this;
        }

        Text bool(boolean value) {
            out.append(value);
            return this;
        }

        Text numbers(int[] numbers) {
            out.append('[');
            for (int i = 0; i < numbers.length; i++) {
                if (i > 0) {
                    out.append(',');
                }
                out.append(numbers[i]);
            }
            out.append(']');
            return this;
        }

        Text string(String text) {
            out.append('"');
            for (int i = 0; i < text.length(); i++) {
                char letter = text.charAt(i);
                if (letter == '"' || letter == '\\') {
                    out.append('\\').append(letter);
                } else if (letter >= ' ' && letter <= '~') {
                    out.append(letter);
                } else {
                    out.append('\\').append('u');
                    for (int shift = 12; shift >= 0; shift -= 4) {
                        out.append(DIGITS[(letter >> shift) & 15]);
                    }
                }
            }
            out.append('"');
            return this;
        }
    }
}
