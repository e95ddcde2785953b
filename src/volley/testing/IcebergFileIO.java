// SPDX-License-Identifier: Apache-2.0
package org.apache.iceberg.hadoop;

import org.apache.hadoop.conf.Configuration;

/** Stands for the file system of an Iceberg catalog in tests. */
public class HadoopFileIO {
    private final Configuration conf;

    public HadoopFileIO(Configuration conf) {
        this.conf = conf;
    }

    public Configuration conf() {
        return conf;
    }
}
