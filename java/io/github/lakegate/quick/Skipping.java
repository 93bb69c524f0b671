package io.github.lakegate.quick;

import com.fasterxml.jackson.databind.JsonNode;
import io.github.lakegate.caches.KnownFile;
import java.time.LocalDate;
import java.time.format.DateTimeParseException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

/** Rules out files by their partition, and by the smallest and largest values in their statistics. */
final class Skipping {
  private static final List<DataType> INTEGERS = List.of(DataTypes.ByteType, DataTypes.ShortType, DataTypes.IntegerType, DataTypes.LongType);

  /**
   * A part of the condition that compares a column with constants.
   *
   * @param name of the column in the statistics
   * @param operator `=` for any of the values, or the comparison with the only value
   */
  record Bound(AttributeReference column, String name, String operator, List<Object> values) {
    boolean isEquality() {
      return operator.equals("=");
    }

    private boolean mayHold(KnownFile file) {
      List<JsonNode> bounds = file.bounds(name);
      Object low = value(bounds.get(0));
      Object high = value(bounds.get(1));
      if (low == null || high == null) return true;
      return switch (operator) {
        case "<" -> values.stream().anyMatch(each -> compared(low, each) < 0);
        case "<=" -> values.stream().anyMatch(each -> compared(low, each) <= 0);
        case ">" -> values.stream().anyMatch(each -> compared(high, each) > 0);
        case ">=" -> values.stream().anyMatch(each -> compared(high, each) >= 0);
        default -> values.stream().anyMatch(each -> compared(low, each) <= 0 && compared(high, each) >= 0);
      };
    }

    private Object value(JsonNode node) {
      DataType type = column.dataType();
      if (INTEGERS.contains(type)) return node.isIntegralNumber() ? node.asLong() : null;
      if (!node.isTextual()) return null;
      if (type.equals(DataTypes.StringType)) return UTF8String.fromString(node.asText());
      try {
        return LocalDate.parse(node.asText()).toEpochDay();
      } catch (DateTimeParseException farAway) {
        return null;
      }
    }

    private static int compared(Object one, Object other) {
      if (one instanceof UTF8String text) return text.compareTo((UTF8String) other);
      return Long.compare((Long) one, ((Number) other).longValue());
    }
  }

  final List<Expression> ofData = new ArrayList<>(); // the parts of the condition that read no partition column
  private final List<InterpretedMutableProjection> ofPartition = new ArrayList<>();
  private final List<Bound> bounds = new ArrayList<>();
  private final int parts;
  private final Map<ExprId, String> columns;

  /** @param columns the name of each column in the statistics */
  Skipping(Expression condition, List<Attribute> partitions, Map<ExprId, String> columns) {
    this.columns = columns;
    List<Expression> parts = new ArrayList<>();
    split(condition, parts);
    this.parts = parts.size();
    for (Expression part : parts) {
      long read = QuickStatement.list(part.references()).stream().filter(each -> isOne(each, partitions)).count();
      if (read == 0) {
        ofData.add(part);
        Bound bound = bound(part);
        if (bound != null) bounds.add(bound);
      } else if (read == part.references().size()) {
        ofPartition.add(new InterpretedMutableProjection(QuickStatement.<Expression>seq(List.of(part)), QuickStatement.seq(partitions)));
      }
    }
  }

  /** The columns that must have one of some values. */
  List<Bound> keys() {
    return bounds.stream().filter(Bound::isEquality).toList();
  }

  /** True if a row matches exactly if its only key has one of the values; equal hashes do not prove that of texts. */
  boolean isOneKey() {
    return parts == 1 && keys().size() == 1 && !keys().get(0).column.dataType().equals(DataTypes.StringType);
  }

  boolean readsPartition() {
    return !ofPartition.isEmpty();
  }

  /** @param partition null unless `readsPartition` */
  boolean mayMatch(KnownFile file, InternalRow partition) {
    for (InterpretedMutableProjection part : ofPartition) {
      InternalRow said = part.apply(partition);
      if (said.isNullAt(0) || !said.getBoolean(0)) return false;
    }
    return bounds.stream().allMatch(bound -> bound.mayHold(file));
  }

  private Bound bound(Expression part) {
    if (part instanceof In in) {
      List<Object> values = new ArrayList<>();
      for (Expression each : QuickStatement.list(in.list())) {
        if (!(each instanceof Literal literal)) return null;
        values.add(literal.value());
      }
      return bound(in.value(), "=", values);
    }
    if (part instanceof InSet set) return bound(set.child(), "=", QuickStatement.list(set.hset()));
    if (!(part instanceof BinaryComparison comparison)) return null;
    String operator = comparison.symbol();
    Expression left = QuickStatement.list(comparison.children()).get(0);
    Expression right = QuickStatement.list(comparison.children()).get(1);
    if (right instanceof Literal literal) return bound(left, operator, List.of(literal));
    if (!(left instanceof Literal literal)) return null;
    String turned = operator.replace('<', '^').replace('>', '<').replace('^', '>');
    return bound(right, operator.equals("<=>") ? operator : turned, List.of(literal));
  }

  /** Null unless the comparison is with values of a type whose order is that of its statistics. */
  private Bound bound(Expression given, String operator, List<?> constants) {
    // A wider type of integers changes neither the values nor their order.
    Expression compared = given;
    if (given instanceof Cast cast) {
      int narrow = INTEGERS.indexOf(cast.child().dataType());
      if (narrow >= 0 && INTEGERS.indexOf(cast.dataType()) > narrow) compared = cast.child();
    }
    if (!(compared instanceof AttributeReference column)) return null;
    DataType type = column.dataType();
    if (!INTEGERS.contains(type) && !type.equals(DataTypes.StringType) && !type.equals(DataTypes.DateType)) return null;
    List<Object> values = new ArrayList<>();
    for (Object each : constants) values.add(each instanceof Literal literal ? literal.value() : each);
    if (operator.equals("<=>") && values.contains(null)) return null; // it holds for NULL, which statistics do not show
    values.removeIf(Objects::isNull);
    return new Bound(column, columns.get(column.exprId()), operator.equals("<=>") ? "=" : operator, values);
  }

  private static boolean isOne(Attribute column, List<Attribute> of) {
    return of.stream().anyMatch(each -> each.exprId().equals(column.exprId()));
  }

  static void split(Expression condition, List<Expression> parts) {
    if (condition instanceof And both) {
      split(both.left(), parts);
      split(both.right(), parts);
    } else parts.add(condition);
  }
}
