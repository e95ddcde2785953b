// SPDX-License-Identifier: Apache-2.0
package org.apache.iceberg.spark.source;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.apache.iceberg.Schema;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Stand for the classes of Iceberg's runtime for Spark in tests: what a plan of Spark has in the place of an Iceberg table.
 * Spark itself finds no rows.
 */
class SparkBatchQueryScan implements Scan, Batch {
    private final IcebergTable table;
    private final StructType read;

    SparkBatchQueryScan(IcebergTable table, StructType read) {
        this.table = table;
        this.read = read;
    }

    protected Schema projection() throws Exception {
        return Schema.parse(table.columns, Arrays.asList(read.fieldNames()));
    }

    protected List tasks() throws Exception {
        return Schema.tasks(table.tasks);
    }

    protected IcebergTable table() {
        return table;
    }

    public StructType readSchema() {
        return read;
    }

    public Batch toBatch() {
        return this;
    }

    public InputPartition[] planInputPartitions() {
        return new InputPartition[0];
    }

    public PartitionReaderFactory createReaderFactory() {
        return new NoReaders();
    }
}

class NoReaders implements PartitionReaderFactory {
    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("there is no partition");
    }
}

public class IcebergTable implements SupportsRead {
    final StructType schema;
    final String columns;
    final String tasks;
    private final Object io;

    public IcebergTable(StructType schema, String columns, String tasks, Object io) {
        this.schema = schema;
        this.columns = columns;
        this.tasks = tasks;
        this.io = io;
    }

    Object io() {
        return io;
    }

    public String name() {
        return "lake.db.t";
    }

    public StructType schema() {
        return schema;
    }

    public Set capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new Builder(this);
    }

    static class Builder implements SupportsPushDownRequiredColumns {
        private final IcebergTable table;
        private StructType read;

        Builder(IcebergTable table) {
            this.table = table;
            this.read = table.schema;
        }

        public void pruneColumns(StructType required) {
            read = required;
        }

        public Scan build() {
            return new SparkBatchQueryScan(table, read);
        }
    }
}
