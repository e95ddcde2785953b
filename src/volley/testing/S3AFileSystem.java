// SPDX-License-Identifier: Apache-2.0
package org.apache.hadoop.fs.s3a;

import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URL;
import java.time.OffsetDateTime;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * Stands for the connector of hadoop-aws in tests: it lists and reads the objects of a test server, so that Spark plans
 * scans of them and serves as the oracle. It writes nothing, but deletes.
 *
 * It asks the server's own interface at `volley.test.filer`, which needs no signatures. Written for Janino: no generics.
 */
public class S3AFileSystem extends FileSystem {
    private static final long DIRECTORY = 1L << 31;
    private static final int BUFFER_BYTES = 1 << 20;

    private URI uri;

    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
    }

    public String getScheme() {
        return "s3a";
    }

    public URI getUri() {
        return uri;
    }

    public Path getWorkingDirectory() {
        return new Path(uri.toString() + "/");
    }

    public void setWorkingDirectory(Path path) {
    }

    public FileStatus getFileStatus(Path path) throws IOException {
        String key = path.toUri().getPath();
        if (key.isEmpty() || key.equals("/")) {
            return new FileStatus(0, true, 1, 0, 0, makeQualified(path));
        }
        return status(json(path, "?metadata=true"));
    }

    public FileStatus[] listStatus(Path path) throws IOException {
        FileStatus found = getFileStatus(path);
        if (!found.isDirectory()) {
            return new FileStatus[] {found};
        }
        JsonNode entries = (JsonNode) json(path, "/?limit=1000000").get("Entries");
        int count = entries == null || entries.isNull() ? 0 : entries.size();
        FileStatus[] statuses = new FileStatus[count];
        for (int i = 0; i < count; i++) {
            statuses[i] = status((JsonNode) entries.get(i));
        }
        return statuses;
    }

    public FSDataInputStream open(Path path, int bufferSize) throws IOException {
        FileStatus found = getFileStatus(path);
        return new FSDataInputStream(new Stream(this, path, found.getLen()));
    }

    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int bufferSize,
            short replication, long blockSize, Progressable progress) throws IOException {
        throw new IOException("the file system of the tests is only read");
    }

    public FSDataOutputStream append(Path path, int bufferSize, Progressable progress) throws IOException {
        throw new IOException("the file system of the tests is only read");
    }

    public boolean rename(Path from, Path to) throws IOException {
        throw new IOException("the file system of the tests is only read");
    }

    public boolean delete(Path path, boolean recursive) throws IOException {
        HttpURLConnection connection = connect(path, recursive ? "?recursive=true" : "");
        connection.setRequestMethod("DELETE");
        return connection.getResponseCode() < 300;
    }

    /** Folders come with their objects. */
    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        return true;
    }

    /** What the connector has for those who need its credentials. */
    public Internals getS3AInternals() {
        return new Internals(getConf());
    }

    private FileStatus status(JsonNode entry) {
        String key = ((JsonNode) entry.get("FullPath")).asText().substring(("/buckets/" + uri.getAuthority()).length());
        boolean directory = (((JsonNode) entry.get("Mode")).asLong() & DIRECTORY) != 0;
        long modified = OffsetDateTime.parse(((JsonNode) entry.get("Mtime")).asText()).toInstant().toEpochMilli();
        long size = directory ? 0 : ((JsonNode) entry.get("FileSize")).asLong();
        return new FileStatus(size, directory, 1, 32L << 20, modified, makeQualified(new Path(uri.getScheme(),
                uri.getAuthority(), key)));
    }

    private JsonNode json(Path path, String query) throws IOException {
        HttpURLConnection connection = connect(path, query);
        connection.setRequestProperty("Accept", "application/json");
        if (connection.getResponseCode() == 404) {
            throw new FileNotFoundException(path.toString());
        }
        InputStream in = connection.getInputStream();
        try {
            return (JsonNode) new ObjectMapper().readTree(in);
        } finally {
            in.close();
        }
    }

    HttpURLConnection connect(Path path, String query) throws IOException {
        String key = path.toUri().getRawPath();
        String host = getConf().get("volley.test.filer");
        return (HttpURLConnection) new URL("http://" + host + "/buckets/" + uri.getAuthority() + key + query)
                .openConnection();
    }

    /** Gives the credentials in `volley.test.credentials`: two keys and perhaps a token. */
    public static final class Internals {
        private final Configuration conf;

        Internals(Configuration conf) {
            this.conf = conf;
        }

        public Internals shareCredentials(String purpose) {
            return this;
        }

        public Credentials resolveCredentials() throws IOException {
            String[] found = conf.getStrings("volley.test.credentials");
            if (found == null) {
                throw new IOException("no provider has credentials");
            }
            return found.length == 2 ? new Credentials(found) : new SessionCredentials(found);
        }

        public void close() {
        }
    }

    public static class Credentials {
        protected final String[] values;

        Credentials(String[] values) {
            this.values = values;
        }

        public String accessKeyId() {
            return values[0];
        }

        public String secretAccessKey() {
            return values[1];
        }
    }

    public static final class SessionCredentials extends Credentials {
        SessionCredentials(String[] values) {
            super(values);
        }

        public String sessionToken() {
            return values[2];
        }
    }

    /** Reads an object by ranges. */
    static final class Stream extends FSInputStream {
        private final S3AFileSystem files;
        private final Path path;
        private final long size;
        private long position = 0;
        private byte[] held = new byte[0];
        private long heldAt = 0;

        Stream(S3AFileSystem files, Path path, long size) {
            this.files = files;
            this.path = path;
            this.size = size;
        }

        public void seek(long to) throws IOException {
            if (to < 0 || to > size) {
                throw new EOFException("seek to " + to);
            }
            position = to;
        }

        public long getPos() {
            return position;
        }

        public boolean seekToNewSource(long target) {
            return false;
        }

        public int read() throws IOException {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        public int read(byte[] target, int offset, int length) throws IOException {
            if (position >= size) {
                return -1;
            }
            if (position < heldAt || position >= heldAt + held.length) {
                fetch(Math.max(length, BUFFER_BYTES));
            }
            int start = (int) (position - heldAt);
            int count = Math.min(length, held.length - start);
            System.arraycopy(held, start, target, offset, count);
            position += count;
            return count;
        }

        private void fetch(int wanted) throws IOException {
            long end = Math.min(size, position + wanted);
            HttpURLConnection connection = files.connect(path, "");
            connection.setRequestProperty("Range", "bytes=" + position + "-" + (end - 1));
            InputStream in = connection.getInputStream();
            try {
                held = in.readAllBytes();
            } finally {
                in.close();
            }
            heldAt = position;
        }
    }
}
