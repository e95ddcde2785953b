// SPDX-License-Identifier: Apache-2.0
package volley.testing;

import java.net.URI;

import org.apache.hadoop.fs.RawLocalFileSystem;

/** Local files under a scheme that Volley does not know, as those of HDFS and of other stores are. */
public class OtherFileSystem extends RawLocalFileSystem {
    public String getScheme() {
        return "other";
    }

    public URI getUri() {
        return URI.create("other:///");
    }
}
