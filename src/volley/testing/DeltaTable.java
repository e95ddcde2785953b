// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.delta;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.types.StructType;

/**
 * Stand for the classes of delta-spark in tests: what a plan of Spark has in the place of a Delta table. Written for
 * Janino: no generics.
 */
class TahoeFileIndex implements FileIndex {
    private final Path root;
    private final StructType partitions;
    private final scala.collection.immutable.Seq directories;
    private final long size;

    TahoeFileIndex(String root, StructType partitions, scala.collection.immutable.Seq directories, long size) {
        this.root = new Path(root);
        this.partitions = partitions;
        this.directories = directories;
        this.size = size;
    }

    public scala.collection.immutable.Seq rootPaths() {
        return Lists.of(new Object[] {root});
    }

    /** Partition filters are evaluated by the test's choice of directories. */
    public scala.collection.immutable.Seq listFiles(
            scala.collection.immutable.Seq partitionFilters, scala.collection.immutable.Seq dataFilters) {
        return directories;
    }

    public String[] inputFiles() {
        return new String[0];
    }

    public void refresh() {
    }

    public long sizeInBytes() {
        return size;
    }

    public StructType partitionSchema() {
        return partitions;
    }
}

class TahoeLogFileIndex extends TahoeFileIndex {
    TahoeLogFileIndex(String root, StructType partitions, scala.collection.immutable.Seq directories, long size) {
        super(root, partitions, directories, size);
    }
}

class TahoeChangeFileIndex extends TahoeFileIndex {
    TahoeChangeFileIndex(String root, StructType partitions, scala.collection.immutable.Seq directories, long size) {
        super(root, partitions, directories, size);
    }
}

class Lists {
    static scala.collection.immutable.Seq of(Object[] items) {
        return scala.collection.immutable.ArraySeq$.MODULE$.unsafeWrapArray(items);
    }
}

public class DeltaParquetFileFormat extends ParquetFileFormat {
    private final DeltaTable.Mapping mapping;

    DeltaParquetFileFormat(String mapping) {
        this.mapping = new DeltaTable.Mapping(mapping);
    }

    public DeltaTable.Mapping columnMappingMode() {
        return mapping;
    }

    /** By another object: tasks of Spark do not find the classes that are compiled here. */
    public scala.Function1 buildReaderWithPartitionValues(
            SparkSession session, StructType data, StructType partitions, StructType required,
            scala.collection.immutable.Seq filters, scala.collection.immutable.Map options, Configuration conf) {
        return new ParquetFileFormat()
                .buildReaderWithPartitionValues(session, data, partitions, required, filters, options, conf);
    }
}

public class DeltaTable {
    public static FileIndex index(
            String kind, String root, StructType partitions, InternalRow[] values, String[] paths, long[] sizes,
            long[] times, boolean[] vectors) {
        Object[] directories = new Object[paths.length];
        long size = 0;
        for (int i = 0; i < paths.length; i++) {
            FileStatus status = new FileStatus(sizes[i], false, 0, 1, times[i], new Path(paths[i]));
            scala.collection.immutable.Map metadata = scala.collection.immutable.Map$.MODULE$.empty();
            if (vectors[i]) {
                metadata = (scala.collection.immutable.Map) metadata.updated("row_index_filter_id_encoded", "x");
            }
            Object[] files = new Object[] {new FileStatusWithMetadata(status, metadata)};
            directories[i] = new PartitionDirectory(values[i], Lists.of(files));
            size += sizes[i];
        }
        scala.collection.immutable.Seq all = Lists.of(directories);
        return kind.equals("changes") ? (FileIndex) new TahoeChangeFileIndex(root, partitions, all, size)
                : (FileIndex) new TahoeLogFileIndex(root, partitions, all, size);
    }

    public static ParquetFileFormat format(String mapping) {
        return new DeltaParquetFileFormat(mapping);
    }

    public static class Mapping {
        private final String name;

        Mapping(String name) {
            this.name = name;
        }

        public String name() {
            return name;
        }
    }
}
