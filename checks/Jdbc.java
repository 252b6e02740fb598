import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Objects;
import org.postgresql.util.PGInterval;

/**
 * Tests a session through JDBC: prepared statements beyond the driver's switch to binary, fetch sizes, batches,
 * metadata, arrays and errors.
 */
class Jdbc {
    /** Number of flights that PostgreSQL counts in the same file. */
    static final long LAX_AND_SFO_ON_THE_FIRST_DAY = 60;

    static void check(Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) throw new AssertionError("got " + got + ", not " + wanted);
    }

    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            try (PreparedStatement count = connection.prepareStatement("select count(*) from flights where month = ? and dest = ?")) {
                long total = 0;
                // From the fifth execution on, the driver prepares the statement on the server.
                for (int month = 1; month <= 12; month++) {
                    count.setInt(1, month);
                    count.setString(2, "LAX");
                    try (ResultSet rows = count.executeQuery()) {
                        rows.next();
                        total += rows.getLong(1);
                    }
                }
                check(total, 16174L);
            }

            try (Statement statement = connection.createStatement()) {
                statement.execute("create table parts (id int primary key, name text default 'none', weight float8) with (partition_by = 'hash(id)')");
            }
            try (PreparedStatement insert = connection.prepareStatement("insert into parts values (?, ?, ?)")) {
                for (int id = 0; id < 20; id++) {
                    insert.setInt(1, id);
                    insert.setString(2, id % 2 == 0 ? "even" : null);
                    insert.setDouble(3, id / 4.0);
                    insert.addBatch();
                }
                for (int touched : insert.executeBatch()) check(touched, 1);
            }

            // Each statement of a batch is applied separately. A failed batch reports how far it got.
            try (PreparedStatement insert = connection.prepareStatement("insert into parts values (?, 'again', 0)")) {
                for (int id : new int[] {20, 0}) {
                    insert.setInt(1, id);
                    insert.addBatch();
                }
                insert.executeBatch();
                throw new AssertionError("a key was accepted twice");
            } catch (BatchUpdateException error) {
                check(error.getSQLState(), "23505");
            }
            try (PreparedStatement delete = connection.prepareStatement("delete from parts where id = ?")) {
                delete.setInt(1, 20);
                delete.executeUpdate();
            }

            // A cursor needs a transaction, so the driver sends BEGIN. It fetches a few rows at a time.
            connection.setAutoCommit(false);
            try (Statement statement = connection.createStatement()) {
                statement.setFetchSize(7);
                try (ResultSet rows = statement.executeQuery("select id, name, weight from parts order by id")) {
                    int id = 0;
                    for (; rows.next(); id++) {
                        check(rows.getInt("id"), id);
                        check(rows.getString("name"), id % 2 == 0 ? "even" : null);
                        check(rows.getDouble("weight"), id / 4.0);
                    }
                    check(id, 20);
                }
            }
            connection.commit();
            connection.setAutoCommit(true);

            DatabaseMetaData about = connection.getMetaData();
            try (ResultSet tables = about.getTables(null, "public", "%", new String[] {"TABLE"})) {
                StringBuilder names = new StringBuilder();
                while (tables.next()) names.append(tables.getString("TABLE_NAME")).append(' ');
                check(names.toString(), "flights parts ");
            }
            try (ResultSet columns = about.getColumns(null, "public", "parts", "%")) {
                StringBuilder described = new StringBuilder();
                while (columns.next()) {
                    described.append(columns.getInt("ORDINAL_POSITION")).append(' ');
                    described.append(columns.getString("COLUMN_NAME")).append(' ');
                    described.append(columns.getString("TYPE_NAME")).append(' ');
                    described.append(columns.getString("IS_NULLABLE")).append(' ');
                    described.append(columns.getString("COLUMN_DEF")).append("; ");
                }
                check(described.toString(), "1 id int4 NO null; 2 name text YES 'none'::text; 3 weight float8 YES null; ");
            }
            try (ResultSet keys = about.getPrimaryKeys(null, "public", "parts")) {
                check(keys.next(), true);
                check(keys.getString("COLUMN_NAME"), "id");
                check(keys.getInt("KEY_SEQ"), 1);
                check(keys.getString("PK_NAME"), "parts_pkey");
                check(keys.next(), false);
            }

            try (ResultSet index = about.getIndexInfo(null, "public", "parts", true, false)) {
                check(index.next(), true);
                check(index.getString("INDEX_NAME"), "parts_pkey");
                check(index.getString("COLUMN_NAME"), "id");
                check(index.getString("ASC_OR_DESC"), "A");
                check(index.getBoolean("NON_UNIQUE"), false);
                check(index.next(), false);
            }
            StringBuilder types = new StringBuilder();
            try (ResultSet type = about.getTypeInfo()) {
                while (type.next()) types.append(type.getString("TYPE_NAME")).append(' ');
            }
            for (String name : "bool int2 int4 int8 float8 numeric text varchar date timestamp timestamptz".split(" ")) {
                check((" " + types).contains(" " + name + " "), true);
            }
            try (ResultSet keys = about.getImportedKeys(null, "public", "parts")) {
                check(keys.next(), false);
            }
            try (ResultSet keys = about.getExportedKeys(null, "public", "parts")) {
                check(keys.next(), false);
            }
            check(about.getSQLKeywords().isEmpty(), false);

            // One parameter is an array, another an interval. The driver sends text first, and binary later.
            try (PreparedStatement some = connection.prepareStatement(
                    "select count(*) from flights where dest = any(?) and time_hour < timestamptz '2013-01-01' + ?")) {
                for (int round = 0; round < 7; round++) {
                    some.setArray(1, connection.createArrayOf("text", new String[] {"LAX", "SFO"}));
                    some.setObject(2, new PGInterval("1 day"));
                    try (ResultSet rows = some.executeQuery()) {
                        rows.next();
                        check(rows.getLong(1), LAX_AND_SFO_ON_THE_FIRST_DAY);
                    }
                }
            }

            try (Statement statement = connection.createStatement()) {
                statement.executeQuery("select * from nowhere");
                throw new AssertionError("an unknown table was accepted");
            } catch (SQLException error) {
                check(error.getSQLState(), "42P01");
            }
            check(connection.isValid(5), true);
        }
    }
}
