// SPDX-License-Identifier: Apache-2.0
package volley;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.rdd.EmptyRDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UnionLoopRef;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.UnionLoopExec;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * The physical plans of a recursive query: that of its first rows, and that of a step, which reads the rows of the step
 * before from a scan of an RDD. Spark's Janino compiles this, so it is Java without lambdas and type arguments.
 */
public final class RecursivePlans {
    /** The plans of one recursion. */
    public Loop read(SparkPlan operator) {
        return new Loop((UnionLoopExec) operator);
    }

    public static final class Loop {
        private final UnionLoopExec loop;
        private final SparkSession session;
        private final Refs refs;
        private final SparkPlan step;

        Loop(UnionLoopExec loop) {
            this.loop = loop;
            session = loop.session();
            refs = new Refs(loop.loopId(), session);
            LogicalPlan plan = (LogicalPlan) loop.recursion().transformWithSubqueries(refs);
            step = physical(plan);
        }

        public SparkPlan anchor() {
            return physical(loop.anchor());
        }

        public SparkPlan step() {
            return step;
        }

        /** Why a step cannot be planned once for all steps; null if it can. */
        public String refusal() {
            if (!loop.recursion().deterministic()) {
                return "a step is not deterministic";
            }
            return refs.readsAll ? "a step reads the rows of all steps before" : null;
        }

        /** The ids of the columns of the scans that stand for the rows of the step before; of a scan in a line. */
        public String inputs() {
            return refs.ids.toString();
        }

        /** At most so many rows are wanted (-1 for all), and how many steps and rows Spark permits. */
        public String limits() {
            SQLConf conf = session.sessionState().conf();
            String rows = loop.limit().isDefined() ? loop.limit().get().toString() : "-1";
            String levels = loop.maxDepth().isDefined()
                    ? loop.maxDepth().get().toString() : conf.getConfString("spark.sql.cteRecursionLevelLimit");
            // LIMIT ALL is -1, too.
            String most = loop.limit().isDefined() ? "-1" : conf.getConfString("spark.sql.cteRecursionRowLimit");
            return rows + "," + levels + "," + most;
        }

        private SparkPlan physical(LogicalPlan plan) {
            return Dataset.ofRows(session, plan).queryExecution().executedPlan();
        }
    }

    /** Puts the scan of an RDD in the place of each reference to the rows of the step before. */
    static final class Refs extends scala.runtime.AbstractPartialFunction {
        final StringBuilder ids = new StringBuilder();
        boolean readsAll = false;
        private final long loop;
        private final SparkSession session;

        Refs(long loop, SparkSession session) {
            this.loop = loop;
            this.session = session;
        }

        public boolean isDefinedAt(Object plan) {
            return plan instanceof UnionLoopRef && ((UnionLoopRef) plan).loopId() == loop;
        }

        public Object applyOrElse(Object plan, scala.Function1 otherwise) {
            if (!isDefinedAt(plan)) {
                return otherwise.apply(plan);
            }
            UnionLoopRef ref = (UnionLoopRef) plan;
            readsAll = readsAll || ref.accumulated();
            StructType schema = new StructType();
            for (int i = 0; i < ref.output().size(); i++) {
                Attribute column = (Attribute) ref.output().apply(i);
                schema = schema.add("c" + i, column.dataType(), column.nullable());
            }
            EmptyRDD nothing = new EmptyRDD(
                    session.sparkContext(), scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class));
            LogicalPlan rows = (LogicalPlan) session.internalCreateDataFrame(nothing, schema, false).logicalPlan();
            List columns = new ArrayList();
            for (int i = 0; i < ref.output().size(); i++) {
                Attribute read = (Attribute) rows.output().apply(i);
                Attribute column = (Attribute) ref.output().apply(i);
                columns.add(new Alias(read, column.name(), column.exprId(), none(), scala.None$.MODULE$, none()));
                ids.append(read.exprId().id()).append(i + 1 < ref.output().size() ? "," : "");
            }
            ids.append("\n");
            return new Project(scala.collection.JavaConverters.asScalaBuffer(columns).toList(), rows);
        }

        private static scala.collection.immutable.Seq none() {
            return scala.collection.JavaConverters.asScalaBuffer(new ArrayList()).toList();
        }
    }
}
