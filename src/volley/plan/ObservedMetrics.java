// SPDX-License-Identifier: Apache-2.0
package volley;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.execution.AggregatingAccumulator;
import org.apache.spark.sql.execution.AggregatingAccumulator$;
import org.apache.spark.sql.execution.CollectMetricsExec;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.adaptive.QueryStageExec;
import org.apache.spark.sql.types.StructType;

/**
 * Gives Spark the metrics of `df.observe` that it did not compute itself. Spark reads them from the accumulators of its
 * plan, which are replaced by constant ones. Compiled like PlanReader, so it is Java without lambdas and type arguments.
 */
public final class ObservedMetrics {
    /** The schema of the metrics with this name, as JSON. Their own names may repeat. */
    public String schema(QueryExecution execution, String name) {
        List found = operators(execution.executedPlan(), new ArrayList());
        for (int i = 0; i < found.size(); i++) {
            CollectMetricsExec operator = (CollectMetricsExec) found.get(i);
            if (operator.name().equals(name)) {
                StructType schema = new StructType();
                for (int at = 0; at < operator.metricExpressions().size(); at++) {
                    Attribute metric = ((NamedExpression) operator.metricExpressions().apply(at)).toAttribute();
                    schema = schema.add("m" + at, metric.dataType(), true);
                }
                return schema.json();
            }
        }
        throw new IllegalStateException("no metrics with the name " + name);
    }

    /** Puts rows of metrics, by name, into the plan of a query that did not run. */
    public void fill(QueryExecution execution, Map rows) throws Exception {
        List found = operators(execution.executedPlan(), new ArrayList());
        for (int i = 0; i < found.size(); i++) {
            CollectMetricsExec operator = (CollectMetricsExec) found.get(i);
            InternalRow row = (InternalRow) rows.get(operator.name());
            if (row != null) {
                setAccumulator(operator, constant(operator, row));
            }
        }
    }

    private static AggregatingAccumulator constant(CollectMetricsExec operator, InternalRow row) {
        List values = new ArrayList();
        for (int at = 0; at < operator.metricExpressions().size(); at++) {
            NamedExpression metric = (NamedExpression) operator.metricExpressions().apply(at);
            values.add(new Literal(row.get(at, metric.toAttribute().dataType()), metric.toAttribute().dataType()));
        }
        return AggregatingAccumulator$.MODULE$.apply(sequence(values), sequence(new ArrayList()));
    }

    private static void setAccumulator(CollectMetricsExec operator, AggregatingAccumulator value) throws Exception {
        Method[] methods = CollectMetricsExec.class.getDeclaredMethods();
        for (int i = 0; i < methods.length; i++) {
            // It is made when it is first asked for, and would replace ours.
            boolean isGetter = methods[i].getParameterCount() == 0
                    && methods[i].getReturnType() == AggregatingAccumulator.class
                    && methods[i].getName().indexOf("lzycompute") < 0;
            if (isGetter) {
                methods[i].setAccessible(true);
                methods[i].invoke(operator, new Object[0]);
            }
        }
        Field[] fields = CollectMetricsExec.class.getDeclaredFields();
        for (int i = 0; i < fields.length; i++) {
            if (fields[i].getType() == AggregatingAccumulator.class) {
                fields[i].setAccessible(true);
                fields[i].set(operator, value);
                return;
            }
        }
        throw new IllegalStateException("CollectMetricsExec has no accumulator");
    }

    private static List operators(SparkPlan plan, List found) {
        if (plan instanceof AdaptiveSparkPlanExec) {
            return operators(((AdaptiveSparkPlanExec) plan).executedPlan(), found);
        }
        if (plan instanceof QueryStageExec) {
            return operators(((QueryStageExec) plan).plan(), found);
        }
        if (plan instanceof CollectMetricsExec) {
            found.add(plan);
        }
        for (int i = 0; i < plan.children().size(); i++) {
            operators((SparkPlan) plan.children().apply(i), found);
        }
        return found;
    }

    private static scala.collection.immutable.Seq sequence(List values) {
        return scala.jdk.javaapi.CollectionConverters.asScala(values).toList();
    }
}
