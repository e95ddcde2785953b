// SPDX-License-Identifier: Apache-2.0
package org.apache.iceberg;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;

/**
 * Stand for the classes of Iceberg's library in tests: what a scan of Spark's tells about its files, as JSON. Written for
 * Janino: no generics.
 */
public class Described {
    final JsonNode node;

    Described(JsonNode node) {
        this.node = node;
    }

    private Object part(String name) {
        return node.has(name) && !node.get(name).isNull() ? new Described(node.get(name)) : null;
    }

    private Object text(String name) {
        return node.has(name) && !node.get(name).isNull() ? node.get(name).asText() : null;
    }

    private List parts(String name) {
        List found = new ArrayList();
        Iterator each = node.get(name).elements();
        while (each.hasNext()) {
            found.add(new Described((JsonNode) each.next()));
        }
        return found;
    }

    // A task.
    public Object file() { return part("file"); }
    public Object spec() { return part("spec"); }
    public List deletes() { return parts("deletes"); }
    public boolean isDataTask() { return node.has("data"); }

    // A file.
    public Object location() { return text("location"); }
    public Object format() { return text("format"); }
    public Object content() { return text("content"); }
    public Object keyMetadata() { return text("key"); }
    public Object partition() { return part("partition"); }
    public long fileSizeInBytes() { return node.get("size").asLong(); }
    public Long contentOffset() { return Long.valueOf(node.get("offset").asLong()); }
    public Long contentSizeInBytes() { return Long.valueOf(node.get("length").asLong()); }

    // The specification of partitions, and a field of it.
    public int specId() { return node.get("id").asInt(); }
    public List fields() { return parts("fields"); }
    public int sourceId() { return node.get("source").asInt(); }
    public Object transform() { return this; }
    public boolean isIdentity() { return node.get("transform").asText().equals("identity"); }

    // A partition, of which the values are numbers or texts.
    public Object get(int place, Class type) {
        JsonNode value = (JsonNode) node.get(place);
        return value.isNull() ? null : value.isInt() ? (Object) Integer.valueOf(value.asInt())
                : value.isLong() ? (Object) Long.valueOf(value.asLong()) : value.asText();
    }

    // A column.
    public int fieldId() { return node.get("id").asInt(); }
}

public class Schema {
    final JsonNode fields;

    public Schema(JsonNode fields) {
        this.fields = fields;
    }

    /** The columns of a schema, as JSON, with these names. */
    public static Schema parse(String json, List names) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        Set wanted = new HashSet(names);
        ArrayNode kept = mapper.createArrayNode();
        Iterator each = mapper.readTree(json).get("fields").elements();
        while (each.hasNext()) {
            JsonNode field = (JsonNode) each.next();
            if (wanted.contains(field.get("name").asText())) {
                kept.add(field);
            }
        }
        return new Schema(kept);
    }

    /** Tasks, as JSON. */
    public static List tasks(String json) throws Exception {
        List found = new ArrayList();
        Iterator each = new ObjectMapper().readTree(json).elements();
        while (each.hasNext()) {
            found.add(new Described((JsonNode) each.next()));
        }
        return found;
    }

    public List columns() {
        List found = new ArrayList();
        Iterator each = fields.elements();
        while (each.hasNext()) {
            found.add(new Described((JsonNode) each.next()));
        }
        return found;
    }

    public Object findField(int id) {
        return fields.findValues("id").toString().matches(".*\\b" + id + "\\b.*") ? this : null;
    }
}

public class SchemaParser {
    public static String toJson(Schema schema) {
        return "{\"type\":\"struct\",\"fields\":" + schema.fields + "}";
    }
}
