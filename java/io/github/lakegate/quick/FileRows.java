package io.github.lakegate.quick;

import io.github.lakegate.caches.KnownFile;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast$;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaColumnMapping;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArray;
import org.apache.spark.sql.delta.deletionvectors.StoredBitmap;
import org.apache.spark.sql.delta.storage.dv.HadoopFileSystemDVStore;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/** Finds the live rows of files that match a condition, with Delta's own reader. */
final class FileRows {
  /** More files, or more bytes, are read faster by Spark. */
  private static final int FILES_MAX = 128;

  private static final long BYTES_MAX = 64L << 20;

  /** Spark's reader fills a column of this name with the number of the row in its file. */
  private static final String ROW_NUMBER = "_tmp_metadata_row_index";

  /** The option without which Spark's reader does not know whether to return rows or batches of columns. */
  private static final String BATCHES = "returning_batch";

  /** Rows that were found in a file. */
  static final class Found {
    final AddFile file;
    RoaringBitmapArray marked = new RoaringBitmapArray(); // the rows that were marked as deleted before
    RoaringBitmapArray matched = new RoaringBitmapArray();
    final List<InternalRow> rows = new ArrayList<>(); // the wanted columns of each row, if any are wanted
    final List<Long> numbers = new ArrayList<>(); // the number of each of `rows`

    private final RoaringBitmapArray places; // the rows that may match, marked or not; null: all
    private final boolean isCertain; // they match

    private Found(AddFile file, RoaringBitmapArray places, boolean isCertain) {
      this.file = file;
      this.places = places;
      this.isCertain = isCertain;
    }

    long count() {
      return matched.cardinality();
    }
  }

  /** What is left to read. */
  static final class Budget {
    private int files;
    private long bytes;

    void take(AddFile file) {
      files++;
      bytes += file.size();
      if (files > FILES_MAX || bytes > BYTES_MAX) throw new QuickStatement.Declined("it reads too many files, or too large ones");
    }
  }

  private final SparkSession session;
  private final Path root;
  private final HadoopFsRelation files;
  private final Skipping skipping;
  private final Map<String, String> physicalNames = new HashMap<>();
  private final List<Attribute> read = new ArrayList<>(); // the columns of what the reader returns
  private final int rowNumberAt;
  private final InterpretedMutableProjection test;
  private final InterpretedMutableProjection wanted; // null: only the numbers of rows are
  private final Map<String, String> options;
  private final Function1<PartitionedFile, Iterator<InternalRow>> reader;
  private final Map<String, Function1<PartitionedFile, Iterator<InternalRow>>> keyReaders = new HashMap<>(); // by column
  private final Configuration conf;

  /** @param columns the columns of `Found.rows`, in this order; null: none */
  FileRows(SparkSession session, DeltaLog log, LogicalRelation relation, Expression condition, List<Attribute> columns) {
    this.session = session;
    this.root = log.dataPath();
    this.files = (HadoopFsRelation) relation.relation();
    this.conf = session.sessionState().newHadoopConfWithOptions(files.options());
    List<AttributeReference> ofTable = QuickStatement.list(relation.output());
    for (StructField each : Change.definition(relation).fields()) physicalNames.put(each.name(), DeltaColumnMapping.getPhysicalName(each));
    Map<ExprId, String> ofStatistics = new HashMap<>();
    for (AttributeReference each : ofTable) ofStatistics.put(each.exprId(), physicalNames.get(each.name()));
    Set<String> partitions = Set.copyOf(Arrays.asList(files.partitionSchema().fieldNames()));
    StructType required = new StructType();
    for (AttributeReference each : ofTable) {
      boolean isRead = condition.references().contains(each) || (columns != null && columns.contains(each));
      if (partitions.contains(each.name()) || !isRead) continue;
      read.add(each);
      required = required.add(field(each));
    }
    rowNumberAt = read.size();
    read.add(
        new AttributeReference(
            ROW_NUMBER, DataTypes.LongType, true, Metadata.empty(), NamedExpression.newExprId(), QuickStatement.seq(List.of())));
    required = required.add(ROW_NUMBER, DataTypes.LongType, true);
    List<Attribute> ofPartitions = new ArrayList<>();
    for (String name : files.partitionSchema().fieldNames()) {
      for (AttributeReference each : ofTable) if (each.name().equals(name)) ofPartitions.add(each);
    }
    read.addAll(ofPartitions);
    Seq<Attribute> input = QuickStatement.seq(read);
    test = new InterpretedMutableProjection(QuickStatement.<Expression>seq(List.of(condition)), input);
    wanted = columns == null ? null : new InterpretedMutableProjection(QuickStatement.<Expression>seq(columns), input);
    skipping = new Skipping(condition, ofPartitions, ofStatistics);
    List<Filter> pushed = new ArrayList<>();
    for (Expression each : skipping.ofData) {
      Option<Filter> filter = DataSourceStrategy$.MODULE$.translateFilter(each, true);
      if (filter.isDefined()) pushed.add(filter.get());
    }
    options = new HashMap<>(QuickStatement.map(files.options()));
    options.put(BATCHES, "false");
    reader = reader(required, pushed);
  }

  private Function1<PartitionedFile, Iterator<InternalRow>> reader(StructType required, List<Filter> pushed) {
    // Each reader puts its columns into its configuration.
    return files.fileFormat().buildReaderWithPartitionValues(
        session, files.dataSchema(), files.partitionSchema(), required, QuickStatement.seq(pushed), PythonUtils.toScalaMap(options),
        new Configuration(conf));
  }

  /** The files that may have such rows, and the rows. */
  List<Found> find(Collection<KnownFile> all) throws Exception {
    List<AddFile> candidates = new ArrayList<>();
    Budget unknown = new Budget();
    for (KnownFile file : all) {
      if (!skipping.mayMatch(file, skipping.readsPartition() ? partition(file.add) : null)) continue;
      candidates.add(file.add);
      if (skipping.keys().stream().noneMatch(key -> KnownKeys.has(root.toString(), file.add, key.name()))) unknown.take(file.add);
    }
    List<Found> found = new ArrayList<>();
    Budget read = new Budget();
    for (AddFile file : candidates) {
      RoaringBitmapArray places = places(file);
      if (places != null && places.isEmpty()) continue;
      boolean isCertain = places != null && wanted == null && skipping.isOneKey();
      if (!isCertain) read.take(file);
      found.add(new Found(file, places, isCertain));
    }
    long rows = 0;
    for (Found each : found) {
      find(each);
      rows += each.count();
      if (rows > QuickStatement.ROWS_MAX) throw new QuickStatement.Declined("it changes more than " + QuickStatement.ROWS_MAX + " rows");
    }
    return found;
  }

  /** The rows of a file that match and are not marked; if there are `places`, only those of them. */
  Found rows(AddFile file, RoaringBitmapArray places) throws Exception {
    Found found = new Found(file, places, false);
    find(found);
    return found;
  }

  /** The rows that the vector of a file marks as deleted. */
  RoaringBitmapArray marked(AddFile file) throws Exception {
    if (file.deletionVector() == null) return new RoaringBitmapArray();
    return StoredBitmap.create(file.deletionVector(), root).load(new HadoopFileSystemDVStore(conf));
  }

  private void find(Found found) throws Exception {
    found.marked = marked(found.file);
    if (found.isCertain) {
      found.matched = found.places;
      found.matched.andNot(found.marked);
      return;
    }
    Iterator<InternalRow> rows = open(reader, found.file);
    int count = 0;
    try {
      while (rows.hasNext()) {
        InternalRow row = rows.next();
        long number = row.getLong(rowNumberAt);
        if (found.places != null && !found.places.contains(number)) continue;
        if (found.marked.contains(number)) continue; // before the test, which may fail on a row that is gone
        InternalRow said = test.apply(row);
        if (said.isNullAt(0) || !said.getBoolean(0)) continue;
        found.matched.add(number);
        if (wanted != null) {
          found.rows.add(wanted.apply(row).copy());
          found.numbers.add(number);
        }
        if (++count > QuickStatement.ROWS_MAX) break;
      }
    } finally {
      if (rows instanceof AutoCloseable open) open.close();
    }
  }

  /** The rows that have the keys of the condition; null if they are not known. */
  private RoaringBitmapArray places(AddFile file) throws Exception {
    RoaringBitmapArray found = null;
    for (Skipping.Bound bound : skipping.keys()) {
      KnownKeys.Column keys = KnownKeys.of(root.toString(), file, bound.name(), () -> keys(file, bound.column()));
      if (keys == null) continue;
      RoaringBitmapArray rows = keys.rowsOf(bound.values());
      if (found == null) found = rows;
      else found.and(rows);
    }
    return found;
  }

  private KnownKeys.Column keys(AddFile file, AttributeReference column) throws Exception {
    StructType required = new StructType().add(field(column)).add(ROW_NUMBER, DataTypes.LongType, true);
    long[] values = new long[1024];
    int[] numbers = new int[1024];
    int count = 0;
    Iterator<InternalRow> rows = open(keyReaders.computeIfAbsent(column.name(), each -> reader(required, List.of())), file);
    try {
      while (rows.hasNext()) {
        InternalRow row = rows.next();
        if (row.isNullAt(0)) continue; // equal to nothing
        if (count == values.length) {
          values = Arrays.copyOf(values, 2 * count);
          numbers = Arrays.copyOf(numbers, 2 * count);
        }
        values[count] = KnownKeys.number(row.get(0, column.dataType()));
        numbers[count++] = (int) row.getLong(1);
      }
    } finally {
      if (rows instanceof AutoCloseable open) open.close();
    }
    return KnownKeys.Column.of(Arrays.copyOf(values, count), Arrays.copyOf(numbers, count));
  }

  private Iterator<InternalRow> open(Function1<PartitionedFile, Iterator<InternalRow>> reader, AddFile file) throws Exception {
    Path path = new Path(new URI(file.path()));
    return reader.apply(
        new PartitionedFile(
            partition(file), SparkPath.fromPath(path.isAbsolute() ? path : new Path(root, path)), 0, file.size(), new String[0],
            file.modificationTime(), file.size(), PythonUtils.toScalaMap(Map.of())));
  }

  private static StructField field(AttributeReference column) {
    return new StructField(column.name(), column.dataType(), column.nullable(), column.metadata());
  }

  private InternalRow partition(AddFile file) {
    StructField[] fields = files.partitionSchema().fields();
    Object[] values = new Object[fields.length];
    Option<String> zone = Option.apply(session.sessionState().conf().sessionLocalTimeZone());
    for (int i = 0; i < fields.length; i++) {
      Option<String> text = file.partitionValues().get(physicalNames.get(fields[i].name()));
      Literal literal = Literal.create(text.isDefined() ? text.get() : null, DataTypes.StringType);
      values[i] = Cast$.MODULE$.apply(literal, fields[i].dataType(), zone, false).eval(null);
    }
    return new GenericInternalRow(values);
  }
}
