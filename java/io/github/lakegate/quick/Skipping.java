package io.github.lakegate.quick;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.delta.actions.AddFile;

/** Rules out files by their partition, and by the smallest and largest values of their statistics. */
final class Skipping {
  final List<Expression> ofData = new ArrayList<>(); // the parts of the condition that read no partition column
  private final List<InterpretedMutableProjection> ofPartition = new ArrayList<>();

  Skipping(Expression condition, List<Attribute> partitions) {
    List<Expression> parts = new ArrayList<>();
    split(condition, parts);
    for (Expression part : parts) {
      long read = QuickStatement.list(part.references()).stream().filter(each -> isOne(each, partitions)).count();
      if (read == 0) ofData.add(part);
      else if (read == part.references().size()) {
        ofPartition.add(new InterpretedMutableProjection(QuickStatement.<Expression>seq(List.of(part)), QuickStatement.seq(partitions)));
      }
    }
  }

  boolean mayMatch(AddFile file, InternalRow partition) {
    for (InterpretedMutableProjection part : ofPartition) {
      InternalRow said = part.apply(partition);
      if (said.isNullAt(0) || !said.getBoolean(0)) return false;
    }
    return true;
  }

  private static boolean isOne(Attribute column, List<Attribute> of) {
    return of.stream().anyMatch(each -> each.exprId().equals(column.exprId()));
  }

  private static void split(Expression condition, List<Expression> parts) {
    if (condition instanceof And both) {
      split(both.left(), parts);
      split(both.right(), parts);
    } else parts.add(condition);
  }
}
