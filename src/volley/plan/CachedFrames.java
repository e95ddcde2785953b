// SPDX-License-Identifier: Apache-2.0
package volley;

import java.lang.ref.WeakReference;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CacheManager;
import org.apache.spark.sql.execution.CachedData;
import org.apache.spark.sql.execution.columnar.CachedRDDBuilder;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.storage.StorageLevel;

/**
 * Tells cached frames apart, and whether Spark still has them. Compiled like PlanReader, so it is Java without lambdas
 * and type arguments.
 *
 * A frame is its CachedRDDBuilder: scans of the same frame share it, and Spark makes a new one when the frame is cached
 * again, or when a table below it has changed. Builders are case classes, and the new one may be equal to the old one, so
 * they are compared by identity.
 */
public final class CachedFrames {
    private final List frames = new ArrayList();
    private final Field entries;
    private int last = 0;

    public CachedFrames() throws Exception {
        entries = CacheManager.class.getDeclaredField("cachedData");
        entries.setAccessible(true);
    }

    /**
     * [number, [columns], order, registered, memory, disk, loaded, bytes]: the frame, the positions of the scan's columns
     * in it, the order that Spark may rely on, whether the cache manager has it, where its storage level allows it, whether
     * Spark has stored all of it, and its size there, or Spark's estimate. The order is a list of [position in the frame, ascending, NULLs
     * first], or null if it is not one of columns.
     */
    public String describe(InMemoryTableScanExec scan) throws Exception {
        InMemoryRelation relation = scan.relation();
        CachedRDDBuilder builder = relation.cacheBuilder();
        StringBuilder text = new StringBuilder("[").append(number(builder)).append(",[");
        scala.collection.Seq wanted = (scala.collection.Seq) scan.attributes();
        for (int i = 0; i < wanted.size(); i++) {
            text.append(i == 0 ? "" : ",").append(position(relation, (Attribute) wanted.apply(i)));
        }
        StorageLevel level = builder.storageLevel();
        boolean registered = registered((SparkSession) scan.session()).contains(builder);
        text.append("],").append(order(scan)).append(',').append(registered);
        text.append(',').append(level.useMemory()).append(',').append(level.useDisk()).append(',');
        boolean loaded = builder.isCachedColumnBuffersLoaded();
        text.append(loaded).append(',').append(relation.computeStats().sizeInBytes().toString());
        return text.append(']').toString();
    }

    /** The numbers of the frames that the cache manager of this session has, as a JSON list. */
    public synchronized String registeredFrames(SparkSession session) throws Exception {
        Identities builders = registered(session);
        StringBuilder text = new StringBuilder("[");
        for (int i = 0; i < frames.size(); i++) {
            Frame frame = (Frame) frames.get(i);
            Object builder = frame.builder.get();
            if (builder != null && builders.contains(builder)) {
                text.append(text.length() == 1 ? "" : ",").append(frame.number);
            }
        }
        return text.append(']').toString();
    }

    private Identities registered(SparkSession session) throws Exception {
        Identities builders = new Identities();
        CacheManager manager = session.sharedState().cacheManager();
        scala.collection.Iterator each = ((scala.collection.Seq) entries.get(manager)).iterator();
        while (each.hasNext()) {
            builders.all.add(((CachedData) each.next()).cachedRepresentation().cacheBuilder());
        }
        return builders;
    }

    private synchronized int number(CachedRDDBuilder builder) {
        for (Iterator each = frames.iterator(); each.hasNext();) {
            Frame frame = (Frame) each.next();
            Object known = frame.builder.get();
            if (known == builder) {
                return frame.number;
            }
            if (known == null) {
                each.remove();
            }
        }
        last++;
        frames.add(new Frame(last, builder));
        return last;
    }

    private static String order(InMemoryTableScanExec scan) {
        StringBuilder text = new StringBuilder("[");
        scala.collection.Seq keys = (scala.collection.Seq) scan.outputOrdering();
        for (int i = 0; i < keys.size(); i++) {
            SortOrder key = (SortOrder) keys.apply(i);
            if (!(key.child() instanceof Attribute)) {
                return "null";
            }
            text.append(i == 0 ? "[" : ",[").append(position(scan.relation(), (Attribute) key.child()));
            text.append(',').append(key.direction().sql().equals("ASC"));
            text.append(',').append(key.nullOrdering().sql().equals("NULLS FIRST")).append(']');
        }
        return text.append(']').toString();
    }

    private static int position(InMemoryRelation relation, Attribute wanted) {
        scala.collection.Seq output = (scala.collection.Seq) relation.output();
        for (int i = 0; i < output.size(); i++) {
            if (((Attribute) output.apply(i)).exprId().equals(wanted.exprId())) {
                return i;
            }
        }
        throw new IllegalStateException("not a column of the cached frame: " + wanted);
    }

    private static final class Frame {
        final int number;
        final WeakReference builder;

        Frame(int number, Object builder) {
            this.number = number;
            this.builder = new WeakReference(builder);
        }
    }

    private static final class Identities {
        final List all = new ArrayList();

        boolean contains(Object wanted) {
            for (int i = 0; i < all.size(); i++) {
                if (all.get(i) == wanted) {
                    return true;
                }
            }
            return false;
        }
    }
}
