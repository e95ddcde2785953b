// SPDX-License-Identifier: Apache-2.0
package PACKAGE;

import java.io.IOException;
import java.net.URI;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * Stands for the connector of an object store in tests, so that Spark plans scans and serves as the oracle: the objects are
 * also local files, under the same path. Tests fill in PACKAGE, NAME and SCHEME. Written for Janino: no generics.
 */
public class NAME extends RawLocalFileSystem {
    private URI uri;

    public void initialize(URI name, Configuration conf) throws IOException {
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
        super.initialize(uri, conf);
    }

    public String getScheme() {
        return "SCHEME";
    }

    /** The constructor of the base asks for it before there is one. */
    public URI getUri() {
        return uri == null ? URI.create("SCHEME:///") : uri;
    }

    public Path getWorkingDirectory() {
        return new Path(getUri().toString() + "/");
    }
}
