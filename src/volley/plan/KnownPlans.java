// SPDX-License-Identifier: Apache-2.0
package volley;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.ApplyFunctionExpression;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.UserDefinedExpression;
import org.apache.spark.sql.catalyst.expressions.VariableReference;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CacheManager;
import org.apache.spark.sql.execution.CommandExecutionMode;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Physical plans of SQL texts that were asked before, so that Spark need not optimize and plan them again.
 *
 * A text is parsed and analyzed each time, which finds other views, tables, functions and variables. Its plan is that
 * of the last time if the analyzed plan is the same, over the same relations with the same lists of files, under the
 * same settings, with the same cached frames, and if nothing in it depends on the time. The plan is of an execution that nobody else has, so it has
 * never run. Compiled like PlanReader, so it is Java without lambdas and type arguments.
 */
public final class KnownPlans {
    private static final int MOST = 128;
    /** Texts that Spark reads as times of the query, in casts. */
    private static final Set TIMES = new HashSet(Arrays.asList(new Object[] {"now", "today", "tomorrow", "yesterday"}));

    private final Map known = new LinkedHashMap(16, 0.75f, true) {
        protected boolean removeEldestEntry(Map.Entry eldest) {
            return size() > MOST;
        }
    };

    /** The plan of a query that was kept, planned when it is first wanted; null if there is none, or not any more. */
    public SparkPlan find(QueryExecution execution) {
        String text = textOf(execution);
        Known found;
        synchronized (known) {
            found = text == null ? null : (Known) known.get(text);
        }
        if (found == null) {
            return null;
        }
        Known now = Known.of(execution);
        if (now == null || !now.equals(found)) {
            synchronized (known) {
                known.remove(text);
            }
            return null;
        }
        return found.plan();
    }

    /** Remember a query that has been found to run natively, by its plan alone. */
    public void keep(QueryExecution execution) {
        String text = textOf(execution);
        Known made = text == null ? null : Known.of(execution);
        if (made != null) {
            synchronized (known) {
                known.put(text, made);
            }
        }
    }

    /** The text of `spark.sql`, if the query is that and nothing more. */
    private static String textOf(QueryExecution execution) {
        scala.Option text = execution.logical().origin().sqlText();
        return text.isDefined() ? (String) text.get() : null;
    }

    /** What a plan depends on. */
    private static final class Known {
        private final SparkSession session;
        private final LogicalPlan analyzed;
        private final LogicalPlan normalized;
        private final Object settings;
        private final List relations;
        /** The list of cached frames, which is another one when a frame is cached or dropped. */
        private final Object cached;
        private SparkPlan plan;

        private Known(QueryExecution execution, List relations) {
            session = execution.sparkSession();
            analyzed = execution.analyzed();
            normalized = execution.normalized();
            settings = session.sessionState().conf().getAllConfs();
            this.relations = relations;
            cached = cachedFrames(session);
        }

        /** Null if the plan depends on more than this. */
        static Known of(QueryExecution execution) {
            SparkSession session = execution.sparkSession();
            List relations = new ArrayList();
            boolean isKnown = cachedFrames(session) != null
                    && session.sessionState().experimentalMethods().extraOptimizations().isEmpty()
                    && session.sessionState().experimentalMethods().extraStrategies().isEmpty()
                    && !execution.analyzed().containsPattern(TreePattern.CURRENT_LIKE())
                    && collect(execution.analyzed(), relations);
            return isKnown ? new Known(execution, relations) : null;
        }

        boolean equals(Known other) {
            if (session != other.session || cached != other.cached || relations.size() != other.relations.size()) {
                return false;
            }
            for (int i = 0; i < relations.size(); i++) {
                Object mine = relations.get(i);
                if (mine != other.relations.get(i)
                        && !(mine instanceof String && mine.equals(other.relations.get(i)))) {
                    return false;
                }
            }
            return settings.equals(other.settings)
                    && analyzed.schema().equals(other.analyzed.schema())
                    && normalized.sameResult(other.normalized);
        }

        synchronized SparkPlan plan() {
            if (plan != null) {
                return plan;
            }
            SparkPlan made = session.sessionState().executePlan(analyzed, CommandExecutionMode.ALL()).executedPlan();
            if (cached == cachedFrames(session)) {
                plan = made;
            }
            return made;
        }

        /** Null where Spark does not show it. */
        private static Object cachedFrames(SparkSession session) {
            try {
                Field field = CacheManager.class.getDeclaredField("cachedData");
                field.setAccessible(true);
                return field.get(session.sharedState().cacheManager());
            } catch (Exception error) {
                return null;
            }
        }

        /**
         * Add what must be the very same objects, or equal texts. False for what has other sources, or other values each
         * time.
         */
        private static boolean collect(QueryPlan node, List relations) {
            if (node instanceof LogicalRelation) {
                return collectRelation((LogicalRelation) node, relations);
            }
            if (node instanceof View) {
                // Views that differ in the order of additions, or of conditions, have the same result for Spark.
                CatalogTable view = ((View) node).desc();
                relations.add(((View) node).isTempView() ? (Object) view : view.viewText() + " " + view.properties());
            }
            boolean isLeaf = node.children().isEmpty();
            if (isLeaf && !(node instanceof OneRowRelation || node instanceof CTERelationRef)
                    || node instanceof CollectMetrics || ((LogicalPlan) node).isStreaming()) {
                return false;
            }
            for (scala.collection.Iterator all = node.expressions().iterator(); all.hasNext(); ) {
                if (!collectExpression((Expression) all.next(), relations)) {
                    return false;
                }
            }
            for (scala.collection.Iterator all = node.children().iterator(); all.hasNext(); ) {
                if (!collect((QueryPlan) all.next(), relations)) {
                    return false;
                }
            }
            return true;
        }

        private static boolean collectRelation(LogicalRelation relation, List relations) {
            if (!(relation.relation() instanceof HadoopFsRelation)) {
                return false;
            }
            HadoopFsRelation files = (HadoopFsRelation) relation.relation();
            if (files.location().getClass() != InMemoryFileIndex.class) {
                return false;
            }
            relations.add(files);
            relations.add(relation.catalogTable().isDefined() ? relation.catalogTable().get() : null);
            // Made anew when the files are listed again.
            relations.add(((InMemoryFileIndex) files.location()).leafFiles());
            return true;
        }

        private static boolean collectExpression(Expression expression, List relations) {
            if (!expression.deterministic() || expression instanceof UserDefinedExpression
                    || expression instanceof ApplyFunctionExpression || expression instanceof VariableReference) {
                return false;
            }
            if (expression instanceof Literal && ((Literal) expression).value() instanceof UTF8String
                    && TIMES.contains(((Literal) expression).value().toString().trim().toLowerCase())) {
                return false;
            }
            if (expression instanceof PlanExpression
                    && !collect(((PlanExpression) expression).plan(), relations)) {
                return false;
            }
            for (scala.collection.Iterator all = expression.children().iterator(); all.hasNext(); ) {
                if (!collectExpression((Expression) all.next(), relations)) {
                    return false;
                }
            }
            return true;
        }
    }
}
