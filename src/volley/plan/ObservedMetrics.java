// SPDX-License-Identifier: Apache-2.0
package volley;

import java.util.Map;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CollectMetricsExec;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.types.StructType;

/**
 * Gives Spark the metrics of `df.observe` that it did not compute itself: as those of a QueryExecution that never runs.
 * Compiled like PlanReader, so it is Java without lambdas and type arguments.
 */
public final class ObservedMetrics {
    /** The schema of the metrics with this name, as JSON. Their own names may repeat. */
    public String schema(QueryExecution execution, String name) {
        StructType metrics = find(execution.executedPlan(), name).metricsSchema();
        StructType schema = new StructType();
        for (int at = 0; at < metrics.length(); at++) {
            schema = schema.add("m" + at, metrics.fields()[at].dataType(), true);
        }
        return schema.json();
    }

    /**
     * An execution of `logical` that has observed these rows, by name. `observed` is the execution of which the rows
     * are, and `mode` lets no command run.
     */
    public QueryExecution complete(
            QueryExecution observed, LogicalPlan logical, scala.Enumeration.Value mode, Map rows) {
        scala.collection.immutable.Map metrics = scala.collection.immutable.Map$.MODULE$.empty();
        Object[] names = rows.keySet().toArray();
        for (int i = 0; i < names.length; i++) {
            StructType schema = find(observed.executedPlan(), (String) names[i]).metricsSchema();
            Object row = CatalystTypeConverters.createToScalaConverter(schema).apply(rows.get(names[i]));
            metrics = (scala.collection.immutable.Map) metrics.updated(names[i], row);
        }
        return new Completed(observed.sparkSession(), logical, observed.tracker(), mode, metrics);
    }

    private static CollectMetricsExec find(SparkPlan plan, String name) {
        CollectMetricsExec found = findBelow(plan, name);
        if (found == null) {
            throw new IllegalStateException("no metrics with the name " + name);
        }
        return found;
    }

    private static CollectMetricsExec findBelow(SparkPlan plan, String name) {
        if (plan instanceof AdaptiveSparkPlanExec) {
            return findBelow(((AdaptiveSparkPlanExec) plan).initialPlan(), name);
        }
        if (plan instanceof CollectMetricsExec && ((CollectMetricsExec) plan).name().equals(name)) {
            return (CollectMetricsExec) plan;
        }
        for (int i = 0; i < plan.children().size(); i++) {
            CollectMetricsExec found = findBelow((SparkPlan) plan.children().apply(i), name);
            if (found != null) {
                return found;
            }
        }
        return null;
    }

    private static final class Completed extends QueryExecution {
        private final scala.collection.immutable.Map metrics;

        Completed(
                SparkSession session, LogicalPlan logical, QueryPlanningTracker tracker, scala.Enumeration.Value mode,
                scala.collection.immutable.Map metrics) {
            // The defaults of the release.
            super(session, logical, tracker, mode, DEFAULTS);
            this.metrics = metrics;
        }

        public scala.collection.immutable.Map observedMetrics() {
            return metrics;
        }
    }
}
