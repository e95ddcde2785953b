// SPDX-License-Identifier: Apache-2.0
package volley;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Reads files of Hadoop file systems with Spark's own objects of them. Spark's Janino compiles this (hadoop_files.py), so
 * it is Java without lambdas, and type arguments are left out.
 *
 * It listens on a Unix domain socket. A connection carries one request at a time, in network byte order:
 *
 *   request   int32 file system, int64 length, then int64 offset, int64 size and the path in UTF-8
 *   reply     int32 status, int64 length, the payload
 *             status 0: the bytes of the file; with a size of -1, the int64 size and the int64 time of the file
 *             status 1: the class of the exception; its text may have what is secret
 */
public final class FileServer {
    private final CopyOnWriteArrayList systems = new CopyOnWriteArrayList();

    public FileServer(String path) throws IOException {
        ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        server.bind(UnixDomainSocketAddress.of(path));
        start(new Acceptor(this, server));
    }

    /** The number of a file system in requests. */
    public int add(Object files) {
        systems.addIfAbsent(files);
        return systems.indexOf(files);
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work, "volley-files");
        thread.setDaemon(true);
        thread.start();
    }

    static final class Acceptor implements Runnable {
        private final FileServer server;
        private final ServerSocketChannel channel;

        Acceptor(FileServer server, ServerSocketChannel channel) {
            this.server = server;
            this.channel = channel;
        }

        public void run() {
            try {
                while (true) {
                    start(new Connection(server, channel.accept()));
                }
            } catch (IOException closed) {
                // Nobody can connect any more, and callers are told so.
            }
        }
    }

    static final class Connection implements Runnable {
        private static final int NAMED = 16;
        private static final int MOST_PATH_BYTES = 1 << 20;
        private final FileServer server;
        private final SocketChannel channel;
        private final ByteBuffer header = ByteBuffer.allocate(12);
        private String opened;
        private FSDataInputStream stream;

        Connection(FileServer server, SocketChannel channel) {
            this.server = server;
            this.channel = channel;
        }

        public void run() {
            try {
                while (fill((ByteBuffer) header.clear())) {
                    header.flip();
                    int number = header.getInt();
                    long length = header.getLong();
                    if (length < NAMED || length > MOST_PATH_BYTES) {
                        break;
                    }
                    ByteBuffer request = ByteBuffer.allocate((int) length);
                    if (!fill(request)) {
                        break;
                    }
                    request.flip();
                    answer(number, request);
                }
            } catch (IOException gone) {
                // The other side has ended.
            } finally {
                close();
                try {
                    channel.close();
                } catch (IOException ignored) {
                    // It is closed.
                }
            }
        }

        private void answer(int number, ByteBuffer request) throws IOException {
            int status = 0;
            byte[] payload;
            try {
                long offset = request.getLong();
                long size = request.getLong();
                String path = new String(request.array(), NAMED, request.remaining(), "UTF-8");
                FileSystem files = (FileSystem) server.systems.get(number);
                payload = size < 0 ? describe(files, path) : read(number, files, path, offset, (int) size);
            } catch (Throwable error) {
                close();
                status = 1;
                payload = error.getClass().getName().getBytes("UTF-8");
            }
            header.clear();
            header.putInt(status).putLong(payload.length).flip();
            send(header);
            send(ByteBuffer.wrap(payload));
        }

        private byte[] describe(FileSystem files, String path) throws IOException {
            FileStatus found = files.getFileStatus(new Path(path));
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(bytes);
            out.writeLong(found.getLen());
            out.writeLong(found.getModificationTime());
            return bytes.toByteArray();
        }

        /** The stream stays open for the next request, which is often for the same file. */
        private byte[] read(int number, FileSystem files, String path, long offset, int size) throws IOException {
            String name = number + " " + path;
            if (!name.equals(opened)) {
                close();
                stream = files.open(new Path(path));
                opened = name;
            }
            byte[] data = new byte[size];
            stream.readFully(offset, data, 0, size);
            return data;
        }

        private void close() {
            opened = null;
            if (stream != null) {
                try {
                    stream.close();
                } catch (IOException ignored) {
                    // Nothing was written.
                }
                stream = null;
            }
        }

        private boolean fill(ByteBuffer buffer) throws IOException {
            while (buffer.hasRemaining()) {
                if (channel.read(buffer) < 0) {
                    return false;
                }
            }
            return true;
        }

        private void send(ByteBuffer buffer) throws IOException {
            while (buffer.hasRemaining()) {
                channel.write(buffer);
            }
        }
    }
}
