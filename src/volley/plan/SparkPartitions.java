// SPDX-License-Identifier: Apache-2.0
package volley;

import org.apache.spark.Partition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.CollectMetricsExec;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.GenerateExec;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.LocalLimitExec;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.RangeExec;
import org.apache.spark.sql.execution.SampleExec;
import org.apache.spark.sql.execution.SortExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.UnionExec;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.FileScanRDD;
import org.apache.spark.sql.execution.datasources.PartitionedFile;

/**
 * How Spark would partition the rows of an operator, as far as that is certain before the query runs. No job is started.
 * Spark's Janino compiles this, so it is Java without lambdas and type arguments.
 *
 * The answer is JSON: lists with a word first. Operators that keep partitions, and the order of rows in them, are left out.
 *
 *   ["slices", n]                                    rows in order, cut into n slices of about the same length
 *   ["files", [[[url, start, bytes], ...], ...]]     the parts of files that each partition reads
 *   ["union", [...]]                                 the partitions of the inputs, one after the other
 *   ["together"]                                     the rows of the inputs of a union, in one partition
 *   ["coalesce", n, below]                           neighbouring partitions together, in n groups
 *   ["unknown", operator]
 */
public final class SparkPartitions {
    public String describe(SparkPlan operator) {
        StringBuilder text = new StringBuilder();
        describe(operator, false, text);
        return text.toString();
    }

    /** With `grouped`, partitions must not prefer a host: Spark groups those that do by host. */
    private static void describe(SparkPlan plan, boolean grouped, StringBuilder out) {
        if (plan instanceof ProjectExec || plan instanceof FilterExec || plan instanceof SampleExec
                || plan instanceof GenerateExec || plan instanceof LocalLimitExec || plan instanceof CollectMetricsExec
                || plan instanceof SortExec && !((SortExec) plan).global()
                || plan instanceof WholeStageCodegenExec || plan instanceof InputAdapter
                || plan instanceof ColumnarToRowExec || isSequence(plan)) {
            describe(child(plan), grouped, out);
        } else if (plan instanceof RangeExec) {
            out.append("[\"slices\",").append(((RangeExec) plan).numSlices()).append("]");
        } else if (isTotal(plan)) {
            out.append("[\"slices\",1]");
        } else if (plan instanceof LocalTableScanExec || isOneRow(plan)) {
            out.append("[\"slices\",").append(plan.execute().getNumPartitions()).append("]");
        } else if (plan instanceof RDDScanExec) {
            out.append("[\"rdd\"]");
        } else if (plan instanceof FileSourceScanExec) {
            files((FileSourceScanExec) plan, grouped, out);
        } else if (plan instanceof UnionExec && plan.outputPartitioning() instanceof UnknownPartitioning) {
            // Otherwise Spark may put partitions with the same number together.
            out.append("[\"union\",[");
            for (int i = 0; i < plan.children().size(); i++) {
                out.append(i == 0 ? "" : ",");
                describe((SparkPlan) plan.children().apply(i), grouped, out);
            }
            out.append("]]");
        } else if (plan instanceof UnionExec && plan.outputPartitioning() == SINGLE) {
            out.append("[\"together\"]");
        } else if (plan instanceof CoalesceExec) {
            out.append("[\"coalesce\",").append(((CoalesceExec) plan).numPartitions()).append(",");
            describe(child(plan), true, out);
            out.append("]");
        } else {
            unknown(plan, out);
        }
    }

    private static final Object SINGLE =
            org.apache.spark.sql.catalyst.plans.physical.SinglePartition$.MODULE$;

    /** Whether it has one row, of an aggregate without keys. */
    private static boolean isTotal(SparkPlan plan) {
        return plan instanceof BaseAggregateExec && ((BaseAggregateExec) plan).groupingExpressions().isEmpty()
                && plan.outputPartitioning() == SINGLE;
    }

    private static SparkPlan child(SparkPlan plan) {
        return (SparkPlan) plan.children().apply(0);
    }

    private static boolean isSequence(SparkPlan plan) {
        return plan.getClass().getSimpleName().equals("AttachDistributedSequenceExec");
    }

    private static boolean isOneRow(SparkPlan plan) {
        return plan.getClass().getSimpleName().equals("OneRowRelationExec")
                || plan instanceof RDDScanExec && ((RDDScanExec) plan).name().equals("OneRowRelation");
    }

    private static void unknown(SparkPlan plan, StringBuilder out) {
        out.append("[\"unknown\",\"").append(plan.getClass().getSimpleName()).append("\"]");
    }

    private static boolean prefersHosts(RDD rows) {
        Partition[] partitions = rows.partitions();
        for (int i = 0; i < partitions.length; i++) {
            if (rows.preferredLocations(partitions[i]).size() > 0) {
                return true;
            }
        }
        return false;
    }

    private static void files(FileSourceScanExec scan, boolean grouped, StringBuilder out) {
        RDD rows = scan.bucketedScan() ? null : scan.inputRDD();
        if (!(rows instanceof FileScanRDD) || grouped && prefersHosts(rows)) {
            unknown(scan, out);
            return;
        }
        scala.collection.Iterator partitions = ((FileScanRDD) rows).filePartitions().iterator();
        out.append("[\"files\",[");
        String between = "";
        while (partitions.hasNext()) {
            FilePartition partition = (FilePartition) partitions.next();
            PartitionedFile[] files = partition.files();
            out.append(between).append("[");
            between = ",";
            for (int i = 0; i < files.length; i++) {
                out.append(i == 0 ? "[\"" : ",[\"");
                // An encoded URL has neither quotes nor backslashes.
                out.append(files[i].urlEncodedPath()).append("\",").append(files[i].start()).append(",");
                out.append(files[i].length()).append("]");
            }
            out.append("]");
        }
        out.append("]]");
    }
}
